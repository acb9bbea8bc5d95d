/** The whole matrix of one head, from all of its tokens down to single cells. */

import { panTo, panViewport, zoomViewport } from "./viewport.js";
import { element } from "../core/dom.js";
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

/** A step of the cursor is at least so many pixels wide. */
const STEP = 5;

/** @type {import("../main.js").View} */
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
 * @param {import("../main.js").Page} page
 */
function mountMap(root, page) {
  const { data, store } = page;
  const screen = new MapCanvas(data);
  const says = mapCaption(page, screen);
  const list = mapTable(page);
  /** @type {Viewport} */
  let area = [0, 0, 0, 0];
  /** @type {Viewport} */
  let held = area;
  /** @type {Pair | null} */
  let cursor = null;
  let resting = 0;
  let waiting = 0;
  let computing = 0;
  let painted = 0;

  const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ onclick) =>
    element("button", { type: "button", "aria-label": label, title: label, onclick }, text);
  const nearer = button("+", "Zoom in", () => zoom(null, 1 / 1.5));
  const farther = button("−", "Zoom out", () => zoom(null, 1.5));
  const all = button("All", "Show the whole map", () => show(whole()));
  const stage = element("div", { class: "stage" }, screen.canvas, screen.marks);
  const { marks } = screen;
  const attributes = { tabindex: "0", role: "application", "aria-roledescription": "attention map", "aria-describedby": "map-keys" };
  for (const [name, value] of Object.entries(attributes)) marks.setAttribute(name, value);
  const keys = element("p", { class: "keys", id: "map-keys" }, "Keys on the map: arrows move the cursor, with shift the map; + and − zoom, 0 shows all, Enter chooses.");
  root.append(element("div", { class: "tools" }, element("span", { class: "zoom", role: "group", "aria-label": "Zoom" }, nearer, farther, all), says.line), element("div", { class: "body" }, stage, element("div", {}, says.legend, keys, list.root)));

  const whole = () => {
    const { queries, keys: count } = data.attention(store.state.attention);
    return /** @type {Viewport} */ ([0, queries, 0, count]);
  };

  const chosen = () => {
    const { query, key } = store.state;
    return key === null ? null : { query, key };
  };

  /** @param {boolean} paper */
  function paint(paper = false) {
    const width = stage.clientWidth;
    if (width === 0) return;
    painted = width;
    screen.paint(area, width, Math.max(240, Math.min(0.78 * window.innerHeight, 900)), paper);
    const entire = isEqual(area, whole());
    marks.style.touchAction = entire ? "pan-y" : "none"; // one finger scrolls the page until there is something to move
    all.disabled = farther.disabled = entire;
    says.painted(area);
    point(cursor);
    cancelAnimationFrame(computing);
    if (screen.seen?.busy) computing = requestAnimationFrame(compute);
  }

  function compute() {
    if (screen.source.work()) paint();
    else computing = requestAnimationFrame(compute);
  }

  /**
   * Shows another part, now; the link follows when the hand rests.
   * @param {Viewport} next
   * @returns {boolean} whether anything changed
   */
  function show(next) {
    if (isEqual(next, area)) return false;
    area = next;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => paint());
    clearTimeout(resting);
    resting = window.setTimeout(() => store.set({ area: isEqual(area, whole()) ? null : area }), REST);
    return true;
  }

  /** @param {Pair | null} pair */
  function point(pair) {
    cursor = pair;
    screen.mark(chosen(), cursor);
    says.point(cursor ?? chosen());
  }

  /**
   * @param {{x: number, y: number} | null} spot
   * @param {number} factor
   */
  function zoom(spot, factor) {
    if (!screen.layout) return false;
    const [top, bottom, left, right] = area;
    const pair = cursor ?? chosen();
    const middle = pair ? { query: pair.query + 0.5, key: pair.key + 0.5 } : { query: (top + bottom) / 2, key: (left + right) / 2 };
    return show(zoomViewport(area, factor, spot ? fractions(spot, area, screen.layout) : middle, screen.source.map));
  }

  attachGestures(marks, {
    zoom,
    hold: () => {
      held = area;
    },
    drag: (start, now, factor) => {
      const { layout, source } = screen;
      if (!layout) return;
      const fixed = fractions(start, held, layout);
      const sized = Math.abs(Math.log(factor)) < 0.02 ? held : zoomViewport(held, factor, fixed, source.map);
      const down = ((start.y - now.y) / layout.tall) * (sized[1] - sized[0]);
      const across = ((start.x - now.x) / layout.wide) * (sized[3] - sized[2]);
      show(panViewport(sized, down, across, source.map));
    },
    hover: (spot) => {
      const pair = spot && screen.pair(spot);
      if (!isEqual(pair, cursor)) point(pair);
    },
    choose: (spot) => {
      const pair = screen.pair(spot);
      if (pair) store.set(pair);
    },
    step: (down, across, event) => {
      const { layout, source } = screen;
      if (!layout) return;
      const [top, bottom, left, right] = area;
      if (event.shiftKey) {
        show(panViewport(area, down * Math.max(1, (bottom - top) / 8), across * Math.max(1, (right - left) / 8), source.map));
        return;
      }
      const { queries, keys: count } = source.map;
      const last = cursor ?? chosen() ?? { query: store.state.query, key: left };
      const inside = last.query >= top && last.query < bottom && last.key >= left && last.key < right;
      const from = inside ? last : { query: (top + bottom) >> 1, key: (left + right) >> 1 };
      const far = { query: Math.ceil((STEP * (bottom - top)) / layout.tall), key: Math.ceil((STEP * (right - left)) / layout.wide) };
      const next = { query: bounded(from.query + down * far.query, queries), key: bounded(from.key + across * far.key, count) };
      show(panTo(area, next, source.map));
      point(next);
    },
    press: (key) => {
      if (key === "0") show(whole());
      else if ((key === "Enter" || key === " ") && cursor) store.set(cursor);
      else return false;
      return true;
    },
  });
  new ResizeObserver(() => {
    if (stage.clientWidth !== painted) paint();
  }).observe(stage);
  addEventListener("beforeprint", () => paint(true));
  addEventListener("afterprint", () => paint());

  /**
   * @param {State} state
   * @param {State | null} before
   */
  return (state, before) => {
    const moved = !before || before.attention !== state.attention;
    const turned = moved || before.head !== state.head;
    if (turned) screen.turn(state.attention, state.head);
    const led = moved || !isEqual(state.area, before.area);
    if (led) {
      clearTimeout(resting);
      area = state.area ?? whole();
      held = area;
    }
    if (moved) cursor = null;
    if (turned || led) paint();
    else point(cursor);
    list.update(state, before);
  };
}

/**
 * Where a spot would be in an area, in fractions of tokens; outside of the cells, too.
 * @param {{x: number, y: number}} spot
 * @param {Viewport} area
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
