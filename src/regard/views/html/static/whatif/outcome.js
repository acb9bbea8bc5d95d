/** What the edits are, in words, and what became of the whole row: output, entropy, sink. */

import { entropy } from "../core/attention.js";
import { element, numberText, token } from "../core/dom.js";
import { valueAt, vectorChange, signedText, softmaxParts, weightText } from "../row/format.js";
import { describeEdits, applyChange } from "./edits.js";

/** @typedef {import("./whatif.js").EditedRow} EditedRow */

/** The number of listed dimensions of the output. */
const LISTED_DIMENSIONS = 8;

/** @type {Record<import("./edits.js").Change["kind"], string>} */
const EDIT_LABELS = { score: "Score of ", mask: "Mask of ", remove: "", scale: "Scale", temperature: "Temperature" };

/** @param {import("./whatif.js").Editing} editing */
export function outcome({ replace }) {
  const edits = element("ul", { class: "edits", tabindex: -1 });
  const facts = element("dl", { class: "facts" });
  const dimensionBox = element("div", { class: "wide" });
  const folded = element("details", { ontoggle: () => fill() }, element("summary", {}, "The dimensions of the output that moved most"), dimensionBox);
  const root = element(
    "div",
    { class: "outcome beside" },
    element("section", {}, element("h2", {}, "Your edits"), edits),
    element("section", { "aria-live": "polite" }, element("h2", {}, "What became of the row"), facts, folded),
  );
  /** @type {EditedRow | null} */
  let shown = null;
  let listKey = "";

  /** @param {import("./edits.js").Change} change */
  function resetEdit(change) {
    if (!shown) return;
    replace(applyChange(shown.edits, change));
    edits.focus();
  }

  function fill() {
    if (shown?.before.output && shown.after.output && folded.open) dimensionBox.replaceChildren(dimensionTable(shown.before.output, shown.after.output));
  }

  /** @param {EditedRow} row */
  function update(row) {
    shown = row;
    facts.replaceChildren(...outcomeRows(row));
    folded.hidden = row.before.output === null;
    fill();
    // A list that says the same stays: a button may be under the finger whose press has just ended an edit.
    const list = describeEdits(row.edits, row.head, row.query, row.before.scores);
    const newKey = JSON.stringify([row.query, list]);
    if (newKey === listKey) return;
    listKey = newKey;
    const items = list.map(({ undoChange, key, before, after }) => {
      const undo = element("button", { type: "button", "aria-label": `Reset this edit: ${EDIT_LABELS[undoChange.kind]}${key === null ? "" : `key ${key}`}`, onclick: () => resetEdit(undoChange) }, "Reset");
      const whose = key === null ? [] : [token(row.keys[key] ?? ""), ` (key ${key})`];
      return element("li", { "data-edit": undoChange.kind, "data-key": key }, element("span", {}, EDIT_LABELS[undoChange.kind], ...whose, `: ${before} → ${after}`), undo);
    });
    edits.replaceChildren(...(items.length ? items : [element("li", { class: "quiet" }, "None yet. Change a score, the scale, the temperature or the mask, or leave a token out.")]));
  }
  return { root, update };
}

/** @param {EditedRow} row */
function outcomeRows({ head, edits, before, after }) {
  /** @type {[string, string, string, number | null][]} */
  const list = [];
  const [oldEntropy, newEntropy] = [entropy(before.weights), entropy(after.weights)];
  list.push(["entropy", "Entropy", `${oldEntropy.toFixed(3)} → ${newEntropy.toFixed(3)} nats (${signedText(newEntropy - oldEntropy, 3)}): ${directionText(newEntropy - oldEntropy, "more evenly spread", "more on few keys")}`, newEntropy]);
  if (before.output && after.output) {
    const { cosine, relative } = vectorChange(before.output, after.output);
    const unchanged = relative !== null && relative === 0;
    list.push(["cosine", "Direction of the output", cosine === null ? "one of them is zero, and has none" : `cosine ${unchanged ? "1" : cosine.toFixed(4)} with the model's own`, cosine]);
    list.push(["relative", "How far the output moved", relative === null ? "the model's own is zero" : `${(relative * 100).toFixed(1)} % of its length`, relative]);
  }
  if (head.sink !== null) {
    const [from, to] = [softmaxParts(before.masked, head.sink).sinkShare, softmaxParts(after.masked, head.sink / (edits.temperature ?? 1)).sinkShare];
    list.push(["sink", "The sink's share", `${weightText(from ?? 0)} → ${weightText(to ?? 0)}`, to]);
  }
  if (after.masked.every((score) => score === -Infinity)) list.push(["nothing", "Nothing to attend to", "all weights and the output are 0", null]);
  return list.flatMap(([name, title, text, value]) => [element("dt", {}, title), element("dd", { "data-fact": name, "data-value": value }, text)]);
}

/**
 * @param {number} change
 * @param {string} up
 * @param {string} down
 */
function directionText(change, up, down) {
  if (Math.abs(change) < 0.0005) return "as before";
  return change > 0 ? `▲ ${up}` : `▼ ${down}`;
}

/**
 * @param {Float64Array} before
 * @param {Float64Array} after
 */
function dimensionTable(before, after) {
  const order = Array.from(before, (value, dimension) => ({ dimension, change: valueAt(after, dimension) - value }));
  order.sort((a, b) => Math.abs(b.change) - Math.abs(a.change) || a.dimension - b.dimension);
  const lines = order.slice(0, LISTED_DIMENSIONS).map(({ dimension, change }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, String(dimension)),
      element("td", {}, numberText(valueAt(before, dimension))),
      element("td", {}, numberText(valueAt(after, dimension))),
      element("td", {}, signedText(change)),
    ),
  );
  const title = (/** @type {string} */ text) => element("th", { scope: "col" }, text);
  return element("table", {}, element("thead", {}, element("tr", {}, title("Dimension"), title("Before"), title("After"), title("Change"))), element("tbody", {}, ...lines));
}
