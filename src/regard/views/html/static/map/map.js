/** The whole matrix of one head, from all of its tokens down to single cells. */

import { panTo, panViewport, zoomViewport } from "./viewport.js";
import { element } from "../core/dom.js";
import { isFramed } from "../core/frame.js";
import { attachGestures } from "./gestures.js";
import { MapCanvas } from "./canvas.js";
import { mapCaption } from "./caption.js";
import { mapTable } from "./table.js";
import { isEqual } from "../core/store.js";

/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {import("../core/store.js").State} State */
/** @typedef {{query: number, key: number}} Pair */

/** Milliseconds of rest after which the area goes into the link. */
const REST = 250;

/** The most pixels of the map's height in a frame, where the window's height says nothing. */
const FRAMED_HEIGHT = 640;

/** The smallest step of the cursor, in pixels. */
const STEP = 5;

/** @type {import("../page.js").View} */
export const map = {
  name: "map",
  title: "Map",
  help:
    "Every weight of one head. Each row is a query and shows how it shares its attention among the keys, from left to right. " +
    "Wheel, two fingers or + and − zoom, dragging moves, a click chooses a query and a key.",
  fits: () => true,
  mount: mountMap,
};

/**
 * @param {HTMLElement} root
 * @param {import("../page.js").Page} page
 */
function mountMap(root, page) {
  const { data, store } = page;
  const mapCanvas = new MapCanvas(data);
  const caption = mapCaption(page, mapCanvas);
  const list = mapTable(page);
  /** @type {Viewport} */
  let viewport = [0, 0, 0, 0];
  /** @type {Viewport} */
  let dragStart = viewport;
  /** @type {Pair | null} */
  let cursor = null;
  let linkTimer = 0;
  let nextPaint = 0;
  let computeFrame = 0;
  let paintedWidth = 0;

  const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ onclick) =>
    element("button", { type: "button", "aria-label": label, title: label, onclick }, text);
  const zoomIn = button("+", "Zoom in", () => zoom(null, 1 / 1.5));
  const zoomOut = button("−", "Zoom out", () => zoom(null, 1.5));
  const showAll = button("All", "Show the whole map", () => show(fullViewport()));
  const box = element("div", { class: "stage" }, mapCanvas.canvas, mapCanvas.marks);
  const { marks } = mapCanvas;
  const attributes = { tabindex: "0", role: "application", "aria-roledescription": "attention map", "aria-describedby": `map-keys${page.suffix}` };
  for (const [name, value] of Object.entries(attributes)) marks.setAttribute(name, value);
  const keys = element("p", { class: "keys", id: `map-keys${page.suffix}` }, "Keys on the map: arrows move the cursor, with shift the map; + and − zoom, 0 shows all, Enter chooses.");
  root.append(element("div", { class: "tools" }, element("span", { class: "zoom", role: "group", "aria-label": "Zoom" }, zoomIn, zoomOut, showAll), caption.line), element("div", { class: "body" }, box, element("div", {}, caption.legend, keys, list.root)));

  const fullViewport = () => {
    const { queries, keys: count } = data.attention(store.state.attention);
    return /** @type {Viewport} */ ([0, queries, 0, count]);
  };

  const selection = () => {
    const { query, key } = store.state;
    return key === null ? null : { query, key };
  };

  /** @param {boolean} printing */
  function paint(printing = false) {
    const width = box.clientWidth;
    if (width === 0) return;
    paintedWidth = width;
    const height = isFramed() ? FRAMED_HEIGHT : Math.max(240, Math.min(0.78 * window.innerHeight, 900));
    mapCanvas.paint(viewport, width, height, printing);
    const isFull = isEqual(viewport, fullViewport());
    marks.style.touchAction = isFull ? "pan-y" : "none"; // one finger scrolls the page until there is something to move
    showAll.disabled = zoomOut.disabled = isFull;
    caption.update(viewport);
    point(cursor);
    cancelAnimationFrame(computeFrame);
    if (mapCanvas.view?.busy) computeFrame = requestAnimationFrame(compute);
  }

  function compute() {
    if (mapCanvas.source.compute()) paint();
    else computeFrame = requestAnimationFrame(compute);
  }

  /**
   * Shows another part, now; the link follows when the hand rests.
   * @param {Viewport} next
   * @returns {boolean} whether anything changed
   */
  function show(next) {
    if (isEqual(next, viewport)) return false;
    viewport = next;
    cancelAnimationFrame(nextPaint);
    nextPaint = requestAnimationFrame(() => paint());
    clearTimeout(linkTimer);
    linkTimer = window.setTimeout(() => store.set({ viewport: isEqual(viewport, fullViewport()) ? null : viewport }), REST);
    return true;
  }

  /** @param {Pair | null} pair */
  function point(pair) {
    cursor = pair;
    mapCanvas.mark(selection(), cursor);
    caption.point(cursor ?? selection());
  }

  /**
   * @param {{x: number, y: number} | null} spot
   * @param {number} factor
   */
  function zoom(spot, factor) {
    if (!mapCanvas.layout) return false;
    const [top, bottom, left, right] = viewport;
    const pair = cursor ?? selection();
    const middle = pair ? { query: pair.query + 0.5, key: pair.key + 0.5 } : { query: (top + bottom) / 2, key: (left + right) / 2 };
    return show(zoomViewport(viewport, factor, spot ? fractions(spot, viewport, mapCanvas.layout) : middle, mapCanvas.source.map));
  }

  attachGestures(marks, {
    zoom,
    hold: () => {
      dragStart = viewport;
    },
    drag: (start, now, factor) => {
      const { layout, source } = mapCanvas;
      if (!layout) return;
      const fixed = fractions(start, dragStart, layout);
      const sized = Math.abs(Math.log(factor)) < 0.02 ? dragStart : zoomViewport(dragStart, factor, fixed, source.map);
      const down = ((start.y - now.y) / layout.tall) * (sized[1] - sized[0]);
      const across = ((start.x - now.x) / layout.wide) * (sized[3] - sized[2]);
      show(panViewport(sized, down, across, source.map));
    },
    hover: (spot) => {
      const pair = spot && mapCanvas.pair(spot);
      if (!isEqual(pair, cursor)) point(pair);
    },
    choose: (spot) => {
      const pair = mapCanvas.pair(spot);
      if (pair) store.set(pair);
    },
    step: (down, across, event) => {
      const { layout, source } = mapCanvas;
      if (!layout) return;
      const [top, bottom, left, right] = viewport;
      if (event.shiftKey) {
        show(panViewport(viewport, down * Math.max(1, (bottom - top) / 8), across * Math.max(1, (right - left) / 8), source.map));
        return;
      }
      const { queries, keys: count } = source.map;
      const last = cursor ?? selection() ?? { query: store.state.query, key: left };
      const inside = last.query >= top && last.query < bottom && last.key >= left && last.key < right;
      const from = inside ? last : { query: (top + bottom) >> 1, key: (left + right) >> 1 };
      const stride = { query: Math.ceil((STEP * (bottom - top)) / layout.tall), key: Math.ceil((STEP * (right - left)) / layout.wide) };
      const next = { query: bounded(from.query + down * stride.query, queries), key: bounded(from.key + across * stride.key, count) };
      show(panTo(viewport, next, source.map));
      point(next);
    },
    press: (key) => {
      if (key === "0") show(fullViewport());
      else if ((key === "Enter" || key === " ") && cursor) store.set(cursor);
      else return false;
      return true;
    },
  });
  new ResizeObserver(() => {
    if (box.clientWidth !== paintedWidth) paint();
  }).observe(box);
  addEventListener("beforeprint", () => paint(true), { signal: page.signal });
  addEventListener("afterprint", () => paint(), { signal: page.signal });

  /**
   * @param {State} state
   * @param {State | null} before
   */
  return (state, before) => {
    const attentionChanged = !before || before.attention !== state.attention;
    const headChanged = attentionChanged || before.head !== state.head;
    if (headChanged) mapCanvas.selectHead(state.attention, state.head);
    const viewportChanged = attentionChanged || !isEqual(state.viewport, before.viewport);
    if (viewportChanged) {
      clearTimeout(linkTimer);
      viewport = state.viewport ?? fullViewport();
      dragStart = viewport;
    }
    if (attentionChanged) cursor = null;
    if (headChanged || viewportChanged) paint();
    else point(cursor);
    list.update(state, before);
  };
}

/**
 * Where a spot would be in an area, in fractions of tokens; outside of the cells, too.
 * @param {{x: number, y: number}} spot
 * @param {Viewport} viewport
 * @param {import("./layout.js").Layout} layout
 */
function fractions({ x, y }, [top, bottom, left, right], layout) {
  return { query: top + ((y - layout.y) / layout.tall) * (bottom - top), key: left + ((x - layout.x) / layout.wide) * (right - left) };
}

/**
 * @param {number} position
 * @param {number} count
 */
function bounded(position, count) {
  return Math.min(count - 1, Math.max(0, position));
}
