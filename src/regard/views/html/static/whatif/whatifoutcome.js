/** What the edits are, in words, and what became of the whole row: output, entropy, sink. */

import { entropy } from "../core/attention.js";
import { make, number, token } from "../core/dom.js";
import { cell, movement, signedText, softmaxParts, weightText } from "../row/rowparts.js";
import { listedEdits, withChange } from "./whatifedits.js";

/** @typedef {import("./whatif.js").EditedRow} EditedRow */

/** So many dimensions of the output are shown. */
const MOVED_DIMENSIONS = 8;

/** @type {Record<import("./whatifedits.js").Change["kind"], string>} */
const EDIT_WORDS = { score: "Score of ", mask: "Mask of ", without: "", scale: "Scale", temperature: "Temperature" };

/** @param {import("./whatif.js").Editing} editing */
export function outcome({ replace }) {
  const edits = make("ul", { class: "edits", tabindex: -1 });
  const facts = make("dl", { class: "facts" });
  const moved = make("div", { class: "wide" });
  const folded = make("details", { ontoggle: () => fill() }, make("summary", {}, "The dimensions of the output that moved most"), moved);
  const root = make(
    "div",
    { class: "outcome beside" },
    make("section", {}, make("h2", {}, "Your edits"), edits),
    make("section", { "aria-live": "polite" }, make("h2", {}, "What became of the row"), facts, folded),
  );
  /** @type {EditedRow | null} */
  let shown = null;
  let said = "";

  /** @param {import("./whatifedits.js").Change} change */
  function takeBack(change) {
    if (!shown) return;
    replace(withChange(shown.edits, change));
    edits.focus();
  }

  function fill() {
    if (shown?.before.output && shown.after.output && folded.open) moved.replaceChildren(movedTable(shown.before.output, shown.after.output));
  }

  /** @param {EditedRow} row */
  function update(row) {
    shown = row;
    facts.replaceChildren(...outcomeFacts(row));
    folded.hidden = row.before.output === null;
    fill();
    // A list that says the same stays: a button may be under the finger whose press has just ended an edit.
    const list = listedEdits(row.edits, row.head, row.query, row.before.scores);
    const says = JSON.stringify([row.query, list]);
    if (says === said) return;
    said = says;
    const items = list.map(({ back, key, before, after }) => {
      const undo = make("button", { type: "button", "aria-label": `Reset this edit: ${EDIT_WORDS[back.kind]}${key === null ? "" : `key ${key}`}`, onclick: () => takeBack(back) }, "Reset");
      const whose = key === null ? [] : [token(row.keys[key] ?? ""), ` (key ${key})`];
      return make("li", { "data-edit": back.kind, "data-key": key }, make("span", {}, EDIT_WORDS[back.kind], ...whose, `: ${before} → ${after}`), undo);
    });
    edits.replaceChildren(...(items.length ? items : [make("li", { class: "quiet" }, "None yet. Change a score, the scale, the temperature or the mask, or leave a token out.")]));
  }
  return { root, update };
}

/** @param {EditedRow} row */
function outcomeFacts({ head, edits, before, after }) {
  /** @type {[string, string, string, number | null][]} */
  const list = [];
  const [was, is] = [entropy(before.weights), entropy(after.weights)];
  list.push(["entropy", "Entropy", `${was.toFixed(3)} → ${is.toFixed(3)} nats (${signedText(is - was, 3)}): ${turned(is - was, "more evenly spread", "more on few keys")}`, is]);
  if (before.output && after.output) {
    const { cosine, relative } = movement(before.output, after.output);
    const still = relative !== null && relative === 0;
    list.push(["cosine", "Direction of the output", cosine === null ? "one of them is zero, and has none" : `cosine ${still ? "1" : cosine.toFixed(4)} with the model's own`, cosine]);
    list.push(["relative", "How far the output moved", relative === null ? "the model's own is zero" : `${(relative * 100).toFixed(1)} % of its length`, relative]);
  }
  if (head.sink !== null) {
    const [from, to] = [softmaxParts(before.masked, head.sink).sinkShare, softmaxParts(after.masked, head.sink / (edits.temperature ?? 1)).sinkShare];
    list.push(["sink", "The sink's share", `${weightText(from ?? 0)} → ${weightText(to ?? 0)}`, to]);
  }
  if (after.masked.every((score) => score === -Infinity)) list.push(["nothing", "Nothing to attend to", "all weights and the output are 0", null]);
  return list.flatMap(([name, title, text, value]) => [make("dt", {}, title), make("dd", { "data-fact": name, "data-value": value }, text)]);
}

/**
 * @param {number} change
 * @param {string} up
 * @param {string} down
 */
function turned(change, up, down) {
  if (Math.abs(change) < 0.0005) return "as before";
  return change > 0 ? `▲ ${up}` : `▼ ${down}`;
}

/**
 * @param {Float64Array} before
 * @param {Float64Array} after
 */
function movedTable(before, after) {
  const order = Array.from(before, (value, dimension) => ({ dimension, change: cell(after, dimension) - value }));
  order.sort((a, b) => Math.abs(b.change) - Math.abs(a.change) || a.dimension - b.dimension);
  const lines = order.slice(0, MOVED_DIMENSIONS).map(({ dimension, change }) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, String(dimension)),
      make("td", {}, number(cell(before, dimension))),
      make("td", {}, number(cell(after, dimension))),
      make("td", {}, signedText(change)),
    ),
  );
  const title = (/** @type {string} */ text) => make("th", { scope: "col" }, text);
  return make("table", {}, make("thead", {}, make("tr", {}, title("Dimension"), title("Before"), title("After"), title("Change"))), make("tbody", {}, ...lines));
}
