/** The table of an edited row. A line is made once and then kept, so that what is typed in stays under the fingers. */

import { element, numberText, token } from "../core/dom.js";
import { field } from "../core/controls.js";
import { setSigned, signedBar } from "../row/bars.js";
import { setDisabled, shortToken } from "../row/picker.js";
import { valueAt, signedText, stepNames, findToken, weightText } from "../row/format.js";
import { editedKeys, isEdited, clearKey } from "./edits.js";
import { numberField } from "./fields.js";

/** @typedef {import("./whatif.js").EditedRow} EditedRow */
/** @typedef {import("./whatif.js").Editing} Editing */
/** @typedef {import("../row/format.js").StepName} StepName */

/** The number of strongest keys in the table at first. */
const INITIAL_KEYS = 20;

/** @type {Record<StepName, string>} */
const COLUMN_TITLES = { scores: "q · k", scaled: "Scaled", capped: "Capped", biased: "With bias", masked: "Into the softmax" };

/** @param {Editing} editing */
export function editTable(editing) {
  const caption = element("caption");
  const head = element("thead", { role: "rowgroup" });
  const lines = element("tbody", { role: "rowgroup" });
  const rest = element("tfoot", { role: "rowgroup" });
  const search = element("input", { type: "search", class: "add-key", placeholder: "position or token", autocomplete: "off" });
  const message = element("span", { class: "quiet", role: "status" });
  const adding = element("div", { class: "tools adding" }, field("Add a key: position or token", search), element("button", { type: "button", onclick: add }, "Add"), message);
  const root = element("section", {}, element("h2", {}, "The row, key by key"), element("div", { class: "wide" }, element("table", { role: "table", class: "edited" }, caption, head, lines, rest)), adding);
  /** @type {Map<number, ReturnType<typeof editLine>>} */
  const lines_ = new Map();
  /** @type {EditedRow | null} */
  let shown = null;

  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") add();
  });

  function add() {
    if (!shown) return;
    const key = findToken(shown.keys, search.value, -1, (each) => !lines_.has(each));
    message.textContent = key < 0 ? `No further key is "${shortToken(search.value)}": a position such as 7, or a part of a token, is wanted.` : "";
    if (key < 0) return;
    search.value = "";
    addLine(key);
    update(shown, false);
    lines_.get(key)?.score.input.focus();
  }

  /** @param {number} key */
  function addLine(key) {
    if (!shown || lines_.has(key)) return;
    const line = editLine(shown, key, editing);
    lines_.set(key, line);
    lines.append(line.root);
  }

  /**
   * Another row: its strongest keys.
   * @param {EditedRow} row
   */
  function start(row) {
    shown = row;
    lines_.clear();
    lines.replaceChildren();
    message.textContent = "";
    for (const key of row.order.slice(0, INITIAL_KEYS)) addLine(key);
    if (row.chosen !== null) addLine(row.chosen);
    const title = (/** @type {string} */ text) => element("th", { scope: "col", role: "columnheader" }, text);
    const titles = ["Token", "Score", ...laterSteps(row).map((name) => COLUMN_TITLES[name]), "May attend", "Before", "After", "Change", "", ""];
    head.replaceChildren(element("tr", { role: "row" }, ...titles.map(title)));
    caption.textContent = `Query ${row.query} "${shortToken(row.queries[row.query])}": weights before and after, and the change in percentage points; bars are relative to the largest change`;
  }

  /**
   * @param {EditedRow} row
   * @param {boolean} force
   */
  function update(row, force) {
    shown = row;
    for (const key of editedKeys(row.edits)) addLine(key);
    const maxChange = row.after.weights.reduce((largest, weight, key) => Math.max(largest, Math.abs(weight - valueAt(row.before.weights, key))), 0);
    for (const line of lines_.values()) line.update(row, force, maxChange);
    const others = row.keys.length - lines_.size;
    adding.hidden = others <= 0;
    rest.replaceChildren(...(others > 0 ? [otherKeys(row, lines_, others, maxChange)] : []));
  }

  /** Puts back a number where something else was typed; answers whether there was one. */
  const restore = () => [...lines_.values()].some(({ score }) => score.restore());
  return { root, start, update, restore };
}

/**
 * The steps between the score and the weight. All of them lead into the softmax, masked or not.
 * @param {EditedRow} row
 */
function laterSteps({ head }) {
  const names = stepNames(head).filter((name) => name !== "scores" && name !== "masked" && name !== "scaled");
  return /** @type {StepName[]} */ (["scaled", ...names, "masked"]);
}

/**
 * @param {EditedRow} row
 * @param {number} key
 * @param {Editing} editing
 */
function editLine(row, key, editing) {
  const text = row.keys[key] ?? "";
  const name = `key ${key} "${shortToken(text)}"`;
  const score = numberField({
    label: `Score of ${name}`,
    name: "score",
    step: 0.1,
    preview: (value) => editing.preview({ kind: "score", key, value }),
    commit: editing.commit,
  });
  const scoreWas = element("span", { class: "was" });
  const steps = laterSteps(row).map((step) => ({ step, is: element("span", { "data-step": step }), was: element("span", { class: "was" }), by: element("span", { class: "was" }) }));
  const modelAllows = row.head.allowed === null || row.head.allowed(row.query, key);
  const allowed = element("input", {
    type: "checkbox",
    class: "may",
    "aria-label": `The query may attend to ${name}`,
    onchange: () => editing.keep({ kind: "mask", key, value: allowed.checked === modelAllows ? null : allowed.checked }),
  });
  const removeButton = element("button", { type: "button", class: "out" });
  const reset = element("button", { type: "button", class: "reset", "aria-label": `Reset the edits of ${name}` }, "Reset");
  const before = element("td", { role: "cell", "data-label": "Before", class: "before" });
  const after = element("td", { role: "cell", "data-label": "After", class: "after" });
  const change = element("span");
  const bar = signedBar(0);
  const cellOf = (/** @type {string} */ label, /** @type {Node[]} */ ...children) => element("td", { role: "cell", "data-label": label }, ...children);
  const root = element(
    "tr",
    { role: "row", "data-key": key },
    element("th", { scope: "row", role: "rowheader" }, element("span", { class: "place" }, `${key} `), token(text)),
    cellOf("Score", score.input, scoreWas, score.message),
    ...steps.map(({ step, is, was, by }) => cellOf(COLUMN_TITLES[step], is, was, by)),
    cellOf("May attend", allowed),
    before,
    after,
    element("td", { role: "cell", "data-label": "Change", class: "change" }, change),
    element("td", { role: "cell", class: "bar" }, bar),
    element("td", { role: "cell", class: "buttons" }, removeButton, reset),
  );

  // What is no number can be reset, too, though it is no edit yet.
  score.input.addEventListener("input", () => {
    if (score.input.hasAttribute("aria-invalid")) setDisabled(reset, false);
  });

  /**
   * @param {EditedRow} now
   * @param {boolean} force
   * @param {number} maxChange the largest change of a weight
   */
  function update(now, force, maxChange) {
    const { edits } = now;
    const hasEdits = isEdited(edits, key);
    score.update(valueAt(now.before.scores, key), valueAt(now.after.scores, key), force);
    scoreWas.textContent = edits.scores?.[key] === undefined ? "" : `was ${numberText(valueAt(now.before.scores, key))}`;
    for (const { step, is, was, by } of steps) {
      const [old, value] = [valueAt(now.before[step], key), valueAt(now.after[step], key)];
      is.textContent = numberText(value);
      was.textContent = old === value ? "" : `was ${numberText(old)}`;
      by.textContent = old === value || !Number.isFinite(value - old) ? "" : signedText(value - old);
    }
    const isRemoved = edits.removedKeys?.includes(key) ?? false;
    allowed.checked = !isRemoved && (edits.mask?.[key] ?? modelAllows);
    allowed.disabled = isRemoved;
    const [from, to] = [valueAt(now.before.weights, key), valueAt(now.after.weights, key)];
    before.textContent = weightText(from);
    after.textContent = weightText(to);
    change.textContent = changeText(to - from);
    setSigned(bar, maxChange > 0 ? (to - from) / maxChange : 0);
    removeButton.textContent = isRemoved ? "Put back" : "Leave out";
    removeButton.setAttribute("aria-label", isRemoved ? `Put ${name} back` : `Leave ${name} out`);
    removeButton.onclick = () => editing.keep({ kind: "remove", key, value: isRemoved ? null : true });
    setDisabled(reset, !hasEdits);
    reset.onclick = () => editing.replace(clearKey(edits, key));
    root.classList.toggle("gone", isRemoved);
    root.classList.toggle("touched", hasEdits);
    root.dataset.before = String(from);
    root.dataset.weight = String(to);
  }
  return { root, score, update };
}

/**
 * The keys that have no line, together.
 * @param {EditedRow} row
 * @param {Map<number, unknown>} lines_
 * @param {number} count
 * @param {number} maxChange
 */
function otherKeys(row, lines_, count, maxChange) {
  const total = (/** @type {Float64Array} */ weights) => weights.reduce((sum, weight, key) => (lines_.has(key) ? sum : sum + weight), 0);
  const [from, to] = [total(row.before.weights), total(row.after.weights)];
  const bar = signedBar(maxChange > 0 ? (to - from) / maxChange : 0);
  const blank = laterSteps(row).length + 3;
  return element(
    "tr",
    { role: "row", class: "others", "data-before": from, "data-weight": to },
    element("th", { scope: "row", role: "rowheader", colspan: blank }, `The other ${count} keys together`),
    element("td", { role: "cell", "data-label": "Before" }, weightText(from)),
    element("td", { role: "cell", "data-label": "After" }, weightText(to)),
    element("td", { role: "cell", "data-label": "Change", class: "change" }, changeText(to - from)),
    element("td", { role: "cell", class: "bar" }, bar),
    element("td", { role: "cell" }),
  );
}

/**
 * A change of a weight in percentage points, with a mark for its direction.
 * @param {number} change
 */
function changeText(change) {
  const points = signedText(change * 100, 2);
  if (points.startsWith("±")) return "= 0.00";
  return `${change > 0 ? "▲" : "▼"} ${points}`;
}
