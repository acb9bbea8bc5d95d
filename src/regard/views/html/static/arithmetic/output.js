/** weights @ v of a row, dimension by dimension, and for one dimension the terms that it is the sum of. */

import { element, numberText, token } from "../core/dom.js";
import { signedBar } from "../row/bars.js";
import { valueTerms, weightText } from "../row/format.js";

/** @typedef {import("./arithmetic.js").Row} Row */

/** The number of dimensions at first, and of terms. */
const FEW_DIMENSIONS = 8;
const FEW_TERMS = 8;

export function outputTable() {
  const heading = element("h2", {}, "Output: weights @ v");
  const description = element("p", { class: "quiet" });
  const more = element("button", { type: "button", class: "more", onclick: () => ((all = !all), fill()) });
  const dimensions = element("div", { class: "dimensions", onkeydown: walk });
  const terms = element("div", { class: "terms", "aria-live": "polite" });
  const panes = element("div", { class: "beside" }, element("div", {}, dimensions, more), terms);
  const root = element("section", { class: "output" }, heading, description, panes);
  let all = false;
  let dimension = 0;
  /** @type {Row | null} */
  let shown = null;

  /** @param {Row} row */
  function update(row) {
    shown = row;
    const { v, dValue } = row.head;
    panes.hidden = !v;
    description.textContent = v
      ? `Each of the ${dValue} dimensions of the output is a sum over the keys: weight × the key's value in that dimension. Choose a dimension to see its terms.`
      : "This page has no values of this attention, so it does not compute its output.";
    dimension = Math.min(dimension, Math.max(0, dValue - 1));
    fill();
  }

  function fill() {
    if (!shown?.steps.output) return;
    const { output } = shown.steps;
    const count = all ? output.length : Math.min(FEW_DIMENSIONS, output.length);
    const largest = output.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
    more.hidden = output.length <= FEW_DIMENSIONS;
    more.textContent = all ? `Show ${FEW_DIMENSIONS}` : `Show all ${output.length}`;
    if (dimension >= count) dimension = 0;
    const lines = [...output.subarray(0, count)].map((value, each) => {
      const pick = element("button", { type: "button", class: "dimension", "aria-label": `Dimension ${each}: ${numberText(value)}, show its terms`, onclick: () => choose(each) }, String(each));
      return element(
        "tr",
        { "data-dimension": each, "data-output": value },
        element("th", { scope: "row" }, pick),
        element("td", {}, numberText(value)),
        element("td", { class: "bar" }, signedBar(largest > 0 ? value / largest : 0)),
      );
    });
    dimensions.replaceChildren(
      element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Dimension"), element("th", { scope: "col" }, "Output"), element("td"))), element("tbody", {}, ...lines)),
    );
    choose(dimension);
  }

  /** @param {number} which */
  function choose(which) {
    dimension = which;
    for (const line of dimensions.querySelectorAll("tbody tr")) {
      const chosen = /** @type {HTMLElement} */ (line).dataset.dimension === String(which);
      line.classList.toggle("chosen", chosen);
      const button = /** @type {HTMLButtonElement} */ (line.querySelector("button"));
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
    if (shown) terms.replaceChildren(termTable(shown, which));
  }

  /** @param {KeyboardEvent} event */
  function walk(event) {
    const buttons = /** @type {HTMLButtonElement[]} */ ([...dimensions.querySelectorAll("button")]);
    const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (event.target));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    buttons[to]?.focus();
  }
  return { root, update };
}

/**
 * @param {Row} row
 * @param {number} dimension
 */
function termTable({ head, steps, keys }, dimension) {
  const { terms, rest, sum } = valueTerms(head, steps.weights, dimension, FEW_TERMS);
  const largest = terms.reduce((largest, { term }) => Math.max(largest, Math.abs(term)), 0);
  const numOthers = keys.length - terms.length;
  const title = (/** @type {string} */ text) => element("th", { scope: "col" }, text);
  return element(
    "div",
    { class: "wide" },
    element(
      "table",
      {},
      element("caption", {}, `Dimension ${dimension}: its largest terms`),
      element("thead", {}, element("tr", {}, title("Key"), title("Token"), title("Weight"), title("× Value"), title("= Term"), element("td"))),
      element(
        "tbody",
        {},
        ...terms.map(({ key, weight, value, term }) =>
          element(
            "tr",
            { "data-key": key },
            element("td", {}, String(key)),
            element("th", { scope: "row" }, token(keys[key] ?? "")),
            element("td", {}, weightText(weight)),
            element("td", {}, numberText(value)),
            element("td", {}, numberText(term)),
            element("td", { class: "bar" }, signedBar(largest > 0 ? term / largest : 0)),
          ),
        ),
        numOthers > 0 && element("tr", {}, element("th", { scope: "row", colspan: 4 }, `The other ${numOthers} keys together`), element("td", {}, numberText(rest)), element("td")),
      ),
      element("tfoot", {}, element("tr", {}, element("th", { scope: "row", colspan: 4 }, "Sum"), element("td", { "data-sum": sum }, numberText(sum)), element("td"))),
    ),
  );
}
