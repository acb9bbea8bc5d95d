/** What a map says in words: the cell under the cursor, what a square stands for, and what its colours mean. */

import { isAllowed } from "../core/attention.js";
import { rampColour } from "../core/colour.js";
import { element, token } from "../core/dom.js";
import { shareText } from "./table.js";

/** @typedef {import("./viewport.js").Viewport} Viewport */

/** So many steps of the colour bar. */
const BAR_STEPS = 64;

/**
 * @param {import("../main.js").Page} page
 * @param {import("./canvas.js").MapCanvas} screen
 */
export function mapCaption(page, screen) {
  const { data, store } = page;
  const line = element("output", { class: "cell-says", "aria-live": "polite" });
  const bar = element("canvas", { class: "bar", width: BAR_STEPS, height: 1, "aria-hidden": "true" });
  const marks = [0, 0.25, 1].map(() => element("span"));
  const scale = element("div", { class: "scale" }, bar, element("div", { class: "numbers" }, ...marks));
  const squares = element("p", { class: "squares" });
  const beside = element("p", { class: "beside" });
  const missing = element("div");
  const legend = element("div", { class: "legend" }, scale, element("div", {}, squares, beside, missing));

  /**
   * @param {string} name
   * @param {string[]} tokens
   * @param {number} from
   * @param {number} to
   */
  const side = (name, tokens, from, to) => (to - from === 1 ? [`${name} ${from} '`, token(tokens[from] ?? ""), "'"] : [`${name} ${from} to ${to - 1}`]);

  /** @param {{query: number, key: number} | null} pair */
  function point(pair) {
    const { seen, source } = screen;
    if (!pair || !seen) {
      line.replaceChildren("Point at a cell to read it.");
      return;
    }
    const { attention } = store.state;
    const tokens = data.tokens(attention);
    const { area, share, exact } = seen.cell(pair.query, pair.key);
    const [top, bottom, left, right] = area;
    const single = bottom - top === 1 && right - left === 1;
    const row = single && !exact ? null : (source.at(pair.query, pair.key) ?? null);
    const value = single && row !== null ? row : share;
    const barred = single && value === 0 && source.head !== null && !isAllowed(source.head, pair.query, pair.key);
    const says = Number.isNaN(value) ? "this row is not in the page" : `${exact ? "" : "about "}${shareText(value)}`;
    const more = barred ? " (masked: the query may not attend to it)" : single || Number.isNaN(value) ? "" : bottom - top > 1 ? " of each query's attention, on average" : " of its attention";
    line.replaceChildren(...side(top + 1 === bottom ? "query" : "queries", tokens.queries, top, bottom), " → ", ...side(left + 1 === right ? "key" : "keys", tokens.keys, left, right), `: ${says}${more}`);
    line.dataset.query = String(pair.query);
    line.dataset.key = String(pair.key);
    line.dataset.weight = String(value);
  }

  /** @param {Viewport} area that is painted now */
  function painted([top, bottom, left, right]) {
    const { seen, source, margins, largest } = screen;
    if (!seen) return;
    const ctx = bar.getContext("2d");
    for (let i = 0; ctx && i < BAR_STEPS; i++) {
      ctx.fillStyle = `rgb(${rampColour(i / (BAR_STEPS - 1), screen.dark).join(" ")})`;
      ctx.fillRect(i, 0, 1, 1);
    }
    [0, 0.25, 1].forEach((share, i) => marks[i]?.replaceChildren(shareText(share * seen.top)));
    squares.textContent = `${cellDescription(seen)} ${screen.numbered ? "The numbers are per cent. " : ""}Colours go by the square root of the share, so that small weights are seen.`;
    screen.marks.setAttribute("aria-label", `Attention map: queries ${top} to ${bottom - 1} from top to bottom, keys ${left} to ${right - 1} from left to right`);
    screen.marks.dataset.area = [top, bottom, left, right].join(" ");
    screen.marks.dataset.from = seen.busy ? "busy" : seen.from;
    const fair = "Below: the attention that each key receives; the dashed line is its fair share, at which all keys would receive the same, and the highest bar is";
    beside.textContent = [
      margins?.entropy ? `On the right: the entropy of each query, up to ${largest.entropy.toFixed(2)} nats; a long bar looks at many keys, a short one at few.` : "",
      `${fair} ${largest.received.toFixed(1)} times that${margins?.approximate ? " (added up from the picture)" : ""}, by the square root again.`,
    ].join(" ");
    const picture = source.head === null;
    missing.replaceChildren(picture ? element("p", {}, "This head is in the page as a picture only.") : "");
    if (screen.missing) missing.replaceChildren(element("p", {}, `Hatched: ${screen.missing} of these ${bottom - top} queries have no row in this page. The page's foot tells how to get them.`));
    else if (!picture && seen.from === "picture" && !seen.busy) missing.replaceChildren(element("p", {}, source.near([top, bottom, left, right]) ? "" : pooledHint([top, bottom, left, right])));
  }

  /** @param {Viewport} area */
  function pooledHint([top, bottom]) {
    const rows = screen.source.head?.rows;
    const none = rows && !rows.some((row) => row >= top && row < bottom);
    return none ? `The page carries no row of these queries, only this picture of them. Its foot tells how to get them.` : "Zoom in for exact weights.";
  }

  return { line, legend, point, painted };
}

/** @param {import("./source.js").PaintedView} seen */
function cellDescription({ from, busy, tall, wide }) {
  if (busy) return "Exact weights are being computed; meanwhile, the picture.";
  const round = (/** @type {number} */ n) => (Number.isInteger(n) ? String(n) : `about ${n.toFixed(n < 10 ? 1 : 0)}`);
  const pooled = `Each square adds up ${round(wide)} ${wide === 1 ? "key" : "keys"} and averages ${round(tall)} ${tall === 1 ? "query" : "queries"}`;
  if (from === "exact") return tall * wide === 1 ? "Exact weights, one square for each query and key." : `Exact weights, pooled: ${pooled.toLowerCase()}, as there are more cells than pixels.`;
  return tall * wide === 1 ? "A picture of all weights, one square for each query and key, good to about a hundredth of the largest." : `A picture from far: ${pooled.toLowerCase()}.`;
}
