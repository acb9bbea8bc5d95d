/** The table of an edited row. A line is made once and then kept, so that what is typed in stays under the fingers. */

import { make, number, token } from "../core/dom.js";
import { field } from "../core/controls.js";
import { setSigned, signedBar } from "../row/rowbars.js";
import { setIdle, shortToken } from "../row/rowpicker.js";
import { cell, signedText, stepsOfHead, tokenMeant, weightText } from "../row/rowparts.js";
import { editedKeys, isEdited, withoutEditsOf } from "./whatifedits.js";
import { numberField } from "./whatiffields.js";

/** @typedef {import("./whatif.js").EditedRow} EditedRow */
/** @typedef {import("./whatif.js").Editing} Editing */
/** @typedef {import("../row/rowparts.js").StepName} StepName */

/** So many of the strongest keys have a line from the start. */
const STRONGEST = 20;

/** @type {Record<StepName, string>} */
const EDITED_TITLES = { scores: "q · k", scaled: "Scaled", capped: "Capped", biased: "With bias", masked: "Into the softmax" };

/** @param {Editing} editing */
export function whatifTable(editing) {
  const caption = make("caption");
  const head = make("thead", { role: "rowgroup" });
  const lines = make("tbody", { role: "rowgroup" });
  const rest = make("tfoot", { role: "rowgroup" });
  const search = make("input", { type: "search", class: "add-key", placeholder: "position or token", autocomplete: "off" });
  const said = make("span", { class: "quiet", role: "status" });
  const adding = make("div", { class: "tools adding" }, field("Add a key: position or token", search), make("button", { type: "button", onclick: add }, "Add"), said);
  const root = make("section", {}, make("h2", {}, "The row, key by key"), make("div", { class: "wide" }, make("table", { role: "table", class: "edited" }, caption, head, lines, rest)), adding);
  /** @type {Map<number, ReturnType<typeof editedLine>>} */
  const made = new Map();
  /** @type {EditedRow | null} */
  let shown = null;

  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") add();
  });

  function add() {
    if (!shown) return;
    const key = tokenMeant(shown.keys, search.value, -1, (each) => !made.has(each));
    said.textContent = key < 0 ? `No further key is "${shortToken(search.value)}": a position such as 7, or a part of a token, is wanted.` : "";
    if (key < 0) return;
    search.value = "";
    addLine(key);
    update(shown, false);
    made.get(key)?.score.input.focus();
  }

  /** @param {number} key */
  function addLine(key) {
    if (!shown || made.has(key)) return;
    const line = editedLine(shown, key, editing);
    made.set(key, line);
    lines.append(line.root);
  }

  /**
   * Another row: its strongest keys.
   * @param {EditedRow} row
   */
  function start(row) {
    shown = row;
    made.clear();
    lines.replaceChildren();
    said.textContent = "";
    for (const key of row.order.slice(0, STRONGEST)) addLine(key);
    if (row.chosen !== null) addLine(row.chosen);
    const title = (/** @type {string} */ text) => make("th", { scope: "col", role: "columnheader" }, text);
    const titles = ["Token", "Score", ...editedSteps(row).map((name) => EDITED_TITLES[name]), "May attend", "Before", "After", "Change", "", ""];
    head.replaceChildren(make("tr", { role: "row" }, ...titles.map(title)));
    caption.textContent = `Query ${row.query} "${shortToken(row.queries[row.query])}": weights before and after, and the change in percentage points; bars are relative to the largest change`;
  }

  /**
   * @param {EditedRow} row
   * @param {boolean} forced
   */
  function update(row, forced) {
    shown = row;
    for (const key of editedKeys(row.edits)) addLine(key);
    const most = row.after.weights.reduce((largest, weight, key) => Math.max(largest, Math.abs(weight - cell(row.before.weights, key))), 0);
    for (const line of made.values()) line.update(row, forced, most);
    const others = row.keys.length - made.size;
    adding.hidden = others <= 0;
    rest.replaceChildren(...(others > 0 ? [otherKeys(row, made, others, most)] : []));
  }

  /** Puts back a number where something else was typed; answers whether there was one. */
  const restore = () => [...made.values()].some(({ score }) => score.restore());
  return { root, start, update, restore };
}

/**
 * The steps between the score and the weight. All of them lead into the softmax, masked or not.
 * @param {EditedRow} row
 */
function editedSteps({ head }) {
  const names = stepsOfHead(head).filter((name) => name !== "scores" && name !== "masked" && name !== "scaled");
  return /** @type {StepName[]} */ (["scaled", ...names, "masked"]);
}

/**
 * @param {EditedRow} row
 * @param {number} key
 * @param {Editing} editing
 */
function editedLine(row, key, editing) {
  const text = row.keys[key] ?? "";
  const name = `key ${key} "${shortToken(text)}"`;
  const score = numberField({
    label: `Score of ${name}`,
    name: "score",
    step: 0.1,
    preview: (value) => editing.preview({ kind: "score", key, value }),
    commit: editing.commit,
  });
  const scoreWas = make("span", { class: "was" });
  const steps = editedSteps(row).map((step) => ({ step, is: make("span", { "data-step": step }), was: make("span", { class: "was" }), by: make("span", { class: "was" }) }));
  const own = row.head.may === null || row.head.may(row.query, key);
  const may = make("input", {
    type: "checkbox",
    class: "may",
    "aria-label": `The query may attend to ${name}`,
    onchange: () => editing.keep({ kind: "mask", key, value: may.checked === own ? null : may.checked }),
  });
  const out = make("button", { type: "button", class: "out" });
  const reset = make("button", { type: "button", class: "reset", "aria-label": `Reset the edits of ${name}` }, "Reset");
  const before = make("td", { role: "cell", "data-label": "Before", class: "before" });
  const after = make("td", { role: "cell", "data-label": "After", class: "after" });
  const change = make("span");
  const bar = signedBar(0);
  const cellOf = (/** @type {string} */ label, /** @type {Node[]} */ ...children) => make("td", { role: "cell", "data-label": label }, ...children);
  const root = make(
    "tr",
    { role: "row", "data-key": key },
    make("th", { scope: "row", role: "rowheader" }, make("span", { class: "place" }, `${key} `), token(text)),
    cellOf("Score", score.input, scoreWas, score.message),
    ...steps.map(({ step, is, was, by }) => cellOf(EDITED_TITLES[step], is, was, by)),
    cellOf("May attend", may),
    before,
    after,
    make("td", { role: "cell", "data-label": "Change", class: "change" }, change),
    make("td", { role: "cell", class: "bar" }, bar),
    make("td", { role: "cell", class: "buttons" }, out, reset),
  );

  // What is no number can be reset, too, though it is no edit yet.
  score.input.addEventListener("input", () => {
    if (score.input.hasAttribute("aria-invalid")) setIdle(reset, false);
  });

  /**
   * @param {EditedRow} now
   * @param {boolean} forced
   * @param {number} most the largest change of a weight
   */
  function update(now, forced, most) {
    const { edits } = now;
    const edited = isEdited(edits, key);
    score.update(cell(now.before.scores, key), cell(now.after.scores, key), forced);
    scoreWas.textContent = edits.scores?.[key] === undefined ? "" : `was ${number(cell(now.before.scores, key))}`;
    for (const { step, is, was, by } of steps) {
      const [old, value] = [cell(now.before[step], key), cell(now.after[step], key)];
      is.textContent = number(value);
      was.textContent = old === value ? "" : `was ${number(old)}`;
      by.textContent = old === value || !Number.isFinite(value - old) ? "" : signedText(value - old);
    }
    const gone = edits.without?.includes(key) ?? false;
    may.checked = !gone && (edits.mask?.[key] ?? own);
    may.disabled = gone;
    const [from, to] = [cell(now.before.weights, key), cell(now.after.weights, key)];
    before.textContent = weightText(from);
    after.textContent = weightText(to);
    change.textContent = changeText(to - from);
    setSigned(bar, most > 0 ? (to - from) / most : 0);
    out.textContent = gone ? "Put back" : "Leave out";
    out.setAttribute("aria-label", gone ? `Put ${name} back` : `Leave ${name} out`);
    out.onclick = () => editing.keep({ kind: "without", key, value: gone ? null : true });
    setIdle(reset, !edited);
    reset.onclick = () => editing.replace(withoutEditsOf(edits, key));
    root.classList.toggle("gone", gone);
    root.classList.toggle("touched", edited);
    root.dataset.before = String(from);
    root.dataset.weight = String(to);
  }
  return { root, score, update };
}

/**
 * The keys that have no line, together.
 * @param {EditedRow} row
 * @param {Map<number, unknown>} made
 * @param {number} count
 * @param {number} most
 */
function otherKeys(row, made, count, most) {
  const total = (/** @type {Float64Array} */ weights) => weights.reduce((sum, weight, key) => (made.has(key) ? sum : sum + weight), 0);
  const [from, to] = [total(row.before.weights), total(row.after.weights)];
  const bar = signedBar(most > 0 ? (to - from) / most : 0);
  const blank = editedSteps(row).length + 3;
  return make(
    "tr",
    { role: "row", class: "others", "data-before": from, "data-weight": to },
    make("th", { scope: "row", role: "rowheader", colspan: blank }, `The other ${count} keys together`),
    make("td", { role: "cell", "data-label": "Before" }, weightText(from)),
    make("td", { role: "cell", "data-label": "After" }, weightText(to)),
    make("td", { role: "cell", "data-label": "Change", class: "change" }, changeText(to - from)),
    make("td", { role: "cell", class: "bar" }, bar),
    make("td", { role: "cell" }),
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
