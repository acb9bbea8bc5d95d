/** The table of a row: a line for each key, a column for each step; of long texts some lines at a time. */

import { element, numberText, token } from "../core/dom.js";
import { field } from "../core/controls.js";
import { setShare, shareBar } from "../row/bars.js";
import { setDisabled, shortToken } from "../row/picker.js";
import { valueAt, stepNames, weightText } from "../row/format.js";

/** @typedef {import("./arithmetic.js").Row} Row */
/** @typedef {import("../row/format.js").StepName} StepName */

/** The number of lines of a page of the table, and of a large page. */
const PAGE_SIZE = 30;
const LARGE_PAGE_SIZE = 256;

/** @type {Record<StepName, string>} */
const COLUMN_TITLES = { scores: "q · k", scaled: "Scaled", capped: "Capped", biased: "With bias", masked: "Masked" };

/** @param {(key: number) => void} choose */
export function keyTable(choose) {
  const order = element(
    "select",
    { class: "order", onchange: () => ((start = 0), fill()) },
    element("option", { value: "weight" }, "largest weight first"),
    element("option", { value: "text" }, "as in the text"),
  );
  const more = element("button", { type: "button", class: "more", onclick: () => ((largePage = !largePage), (start = 0), fill()) });
  const back = element("button", { type: "button", onclick: () => turn(-1) }, "‹ Earlier");
  const on = element("button", { type: "button", onclick: () => turn(1) }, "Later ›");
  const range = element("span", { class: "quiet", role: "status" });
  const caption = element("caption");
  const head = element("thead");
  const lines = element("tbody", { onkeydown: walk, onclick: clicked });
  const table = element("div", { class: "wide" }, element("table", { class: "keys" }, caption, head, lines));
  const root = element("section", { class: "keys-of-row" }, element("div", { class: "tools" }, field("Order", order), more, back, on, range), table);
  let largePage = false;
  let start = 0;
  /** @type {Row | null} */
  let shown = null;

  /** @param {number} by */
  function turn(by) {
    const to = start + by * (largePage ? LARGE_PAGE_SIZE : PAGE_SIZE);
    if (!shown || to < 0 || to >= shown.keys.length) return;
    start = to;
    fill();
  }

  /**
   * @param {Row} row
   * @param {boolean} isNewRow whether it is another row
   */
  function update(row, isNewRow) {
    shown = row;
    if (isNewRow) {
      start = 0;
      fill();
    } else mark();
  }

  function fill() {
    if (!shown) return;
    const row = shown;
    const count = row.keys.length;
    const size = largePage ? LARGE_PAGE_SIZE : PAGE_SIZE;
    const keys = order.value === "text" ? row.keys.map((_, key) => key) : row.order;
    const end = Math.min(count, start + size);
    const names = stepNames(row.head);
    const maxWeight = valueAt(row.steps.weights, row.order[0] ?? 0);
    more.hidden = count <= PAGE_SIZE;
    more.textContent = largePage ? `Show ${PAGE_SIZE}` : count <= LARGE_PAGE_SIZE ? `Show all ${count}` : `Show ${LARGE_PAGE_SIZE} at a time`;
    back.hidden = on.hidden = count <= size;
    setDisabled(back, start === 0);
    setDisabled(on, end === count);
    range.textContent = count <= size ? "" : `${order.value === "text" ? "keys" : "places"} ${start} to ${end - 1} of ${count}`;
    caption.textContent = `Query ${row.query} "${shortToken(row.queries[row.query])}" and its ${count} keys; bars are relative to the largest weight, ${weightText(maxWeight)}`;
    const column = (/** @type {string} */ title) => element("th", { scope: "col" }, title);
    head.replaceChildren(element("tr", {}, column("Key"), ...names.map((name) => column(COLUMN_TITLES[name])), column("Weight")));
    table.style.setProperty("--digits", String(String(count - 1).length));
    lines.replaceChildren(...keys.slice(start, end).map((key) => keyLine(row, names, key, maxWeight)));
    mark();
  }

  /** Marks the chosen key; its button, or the first, is the one that Tab reaches. */
  function mark() {
    let hasChosen = false;
    for (const button of keyButtons()) {
      const chosen = Number(button.dataset.key) === shown?.key;
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      button.closest("tr")?.classList.toggle("chosen", chosen);
      hasChosen ||= chosen;
    }
    const [first] = keyButtons();
    if (!hasChosen && first) first.tabIndex = 0;
  }

  function keyButtons() {
    return /** @type {HTMLButtonElement[]} */ ([...lines.querySelectorAll("button")]);
  }

  /** @param {KeyboardEvent} event */
  function walk(event) {
    const buttons = keyButtons();
    const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (event.target));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    buttons[to]?.focus();
  }

  /** @param {MouseEvent} event */
  function clicked(event) {
    const line = /** @type {Element} */ (event.target).closest("tr");
    if (line?.dataset.key) choose(Number(line.dataset.key));
  }
  return { root, update };
}

/**
 * @param {Row} row
 * @param {StepName[]} names
 * @param {number} key
 * @param {number} maxWeight
 */
function keyLine({ steps, keys, query, queries }, names, key, maxWeight) {
  const weight = valueAt(steps.weights, key);
  const label = `Query ${query} "${shortToken(queries[query])}" gives ${weightText(weight)} to key ${key} "${shortToken(keys[key])}": show its steps`;
  const bar = shareBar(0);
  setShare(bar, maxWeight > 0 ? weight / maxWeight : 0);
  return element(
    "tr",
    { "data-key": key, "data-weight": weight, class: valueAt(steps.masked, key) === -Infinity ? "masked" : null },
    element("th", { scope: "row" }, element("button", { type: "button", class: "key", "data-key": key, "aria-label": label, tabindex: -1 }, element("span", { class: "place" }, `${key}`), token(keys[key] ?? ""))),
    ...names.map((name) => element("td", { "data-step": name }, numberText(valueAt(steps[name], key)))),
    element("td", { class: "weight" }, element("span", {}, weightText(weight)), bar),
  );
}
