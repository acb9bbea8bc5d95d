/** The caption of a map: the cell under the cursor, the meaning of a cell and of its colours. */

import { isAllowed } from "../core/attention.js";
import { rampColour } from "../core/colour.js";
import { element, token } from "../core/dom.js";
import { shareText } from "./table.js";

/** @typedef {import("./viewport.js").Viewport} Viewport */

/** The number of steps of the colour bar. */
const BAR_STEPS = 64;

/**
 * @param {import("../page.js").Page} page
 * @param {import("./canvas.js").MapCanvas} mapCanvas
 */
export function mapCaption(page, mapCanvas) {
  const { data, store } = page;
  const line = element("output", { class: "cell-says", "aria-live": "polite" });
  const bar = element("canvas", { class: "bar", width: BAR_STEPS, height: 1, "aria-hidden": "true" });
  const ticks = [0, 0.25, 1].map(() => element("span"));
  const scale = element("div", { class: "scale" }, bar, element("div", { class: "numbers" }, ...ticks));
  const cellsText = element("p", { class: "squares" });
  const marginsText = element("p", { class: "beside" });
  const missing = element("div");
  const legend = element("div", { class: "legend" }, scale, element("div", {}, cellsText, marginsText, missing));

  /**
   * @param {string} name
   * @param {string[]} tokens
   * @param {number} from
   * @param {number} to
   */
  const sideText = (name, tokens, from, to) => (to - from === 1 ? [`${name} ${from} '`, token(tokens[from] ?? ""), "'"] : [`${name} ${from} to ${to - 1}`]);

  /** @param {{query: number, key: number} | null} pair */
  function point(pair) {
    const { view, source } = mapCanvas;
    if (!pair || !view) {
      line.replaceChildren("Point at a cell to read it.");
      return;
    }
    const { attention } = store.state;
    const tokens = data.tokens(attention);
    const { viewport, share, exact } = view.cell(pair.query, pair.key);
    const [top, bottom, left, right] = viewport;
    const single = bottom - top === 1 && right - left === 1;
    const row = single && !exact ? null : (source.weightAt(pair.query, pair.key) ?? null);
    const value = single && row !== null ? row : share;
    const isMasked = single && value === 0 && source.head !== null && !isAllowed(source.head, pair.query, pair.key);
    const valueText = Number.isNaN(value) ? "this row is not in the page" : `${exact ? "" : "about "}${shareText(value)}`;
    const note = isMasked ? " (masked: the query may not attend to it)" : single || Number.isNaN(value) ? "" : bottom - top > 1 ? " of each query's attention, on average" : " of its attention";
    line.replaceChildren(...sideText(top + 1 === bottom ? "query" : "queries", tokens.queries, top, bottom), " → ", ...sideText(left + 1 === right ? "key" : "keys", tokens.keys, left, right), `: ${valueText}${note}`);
    line.dataset.query = String(pair.query);
    line.dataset.key = String(pair.key);
    line.dataset.weight = String(value);
  }

  /** @param {Viewport} viewport that is painted now */
  function update([top, bottom, left, right]) {
    const { view, source, margins, largest } = mapCanvas;
    if (!view) return;
    const ctx = bar.getContext("2d");
    for (let i = 0; ctx && i < BAR_STEPS; i++) {
      ctx.fillStyle = `rgb(${rampColour(i / (BAR_STEPS - 1), mapCanvas.dark).join(" ")})`;
      ctx.fillRect(i, 0, 1, 1);
    }
    [0, 0.25, 1].forEach((share, i) => ticks[i]?.replaceChildren(shareText(share * view.top)));
    cellsText.textContent = `${cellDescription(view)} ${mapCanvas.numbered ? "The numbers are per cent. " : ""}Colours go by the square root of the share, so that small weights are seen.`;
    mapCanvas.marks.setAttribute("aria-label", `Attention map: queries ${top} to ${bottom - 1} from top to bottom, keys ${left} to ${right - 1} from left to right`);
    mapCanvas.marks.dataset.viewport = [top, bottom, left, right].join(" ");
    mapCanvas.marks.dataset.from = view.busy ? "busy" : view.from;
    const receivedText = "Below: the attention that each key receives; the dashed line is its fair share, at which all keys would receive the same, and the highest bar is";
    marginsText.textContent = [
      margins?.entropy ? `On the right: the entropy of each query, up to ${largest.entropy.toFixed(2)} nats; a long bar looks at many keys, a short one at few.` : "",
      `${receivedText} ${largest.received.toFixed(1)} times that${margins?.approximate ? " (added up from the picture)" : ""}, by the square root again.`,
    ].join(" ");
    const isPooledOnly = source.head === null;
    missing.replaceChildren(isPooledOnly ? element("p", {}, "This head is in the page as a picture only.") : "");
    if (mapCanvas.missing) missing.replaceChildren(element("p", {}, `Hatched: ${mapCanvas.missing} of these ${bottom - top} queries have no row in this page. The page's footer says how to get them.`));
    else if (!isPooledOnly && view.from === "picture" && !view.busy) missing.replaceChildren(element("p", {}, source.canBeExact([top, bottom, left, right]) ? "" : pooledHint([top, bottom, left, right])));
  }

  /** @param {Viewport} viewport */
  function pooledHint([top, bottom]) {
    const rows = mapCanvas.source.head?.rows;
    const hasNoRow = rows && !rows.some((row) => row >= top && row < bottom);
    return hasNoRow ? `The page has no row of these queries, only this picture of them. Its footer says how to get them.` : "Zoom in for exact weights.";
  }

  return { line, legend, point, update };
}

/** @param {import("./source.js").PaintedView} view */
function cellDescription({ from, busy, tall, wide }) {
  if (busy) return "Exact weights are being computed; meanwhile, the picture.";
  const round = (/** @type {number} */ n) => (Number.isInteger(n) ? String(n) : `about ${n.toFixed(n < 10 ? 1 : 0)}`);
  const pooled = `Each square adds up ${round(wide)} ${wide === 1 ? "key" : "keys"} and averages ${round(tall)} ${tall === 1 ? "query" : "queries"}`;
  if (from === "exact") return tall * wide === 1 ? "Exact weights, one square for each query and key." : `Exact weights, pooled: ${pooled.toLowerCase()}, as there are more cells than pixels.`;
  return tall * wide === 1 ? "A picture of all weights, one square for each query and key, good to about a hundredth of the largest." : `A picture from far: ${pooled.toLowerCase()}.`;
}
