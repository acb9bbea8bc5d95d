/** weights @ v of a row, dimension by dimension, and for one dimension the terms that it is the sum of. */

import { make, number, token } from "../core/dom.js";
import { signedBar } from "../row/rowbars.js";
import { valueTerms, weightText } from "../row/rowparts.js";

/** @typedef {import("./arithmetic.js").Row} Row */

/** So many dimensions are shown at first, and so many terms. */
const FEW_DIMENSIONS = 8;
const FEW_TERMS = 8;

export function arithmeticOutput() {
  const heading = make("h2", {}, "Output: weights @ v");
  const says = make("p", { class: "quiet" });
  const more = make("button", { type: "button", class: "more", onclick: () => ((all = !all), fill()) });
  const dimensions = make("div", { class: "dimensions", onkeydown: walk });
  const terms = make("div", { class: "terms", "aria-live": "polite" });
  const sides = make("div", { class: "beside" }, make("div", {}, dimensions, more), terms);
  const root = make("section", { class: "output" }, heading, says, sides);
  let all = false;
  let dimension = 0;
  /** @type {Row | null} */
  let shown = null;

  /** @param {Row} row */
  function update(row) {
    shown = row;
    const { v, valueWidth } = row.head;
    sides.hidden = !v;
    says.textContent = v
      ? `Each of the ${valueWidth} dimensions of the output is a sum over the keys: weight × the key's value in that dimension. Choose a dimension to see its terms.`
      : "This page carries no values of this attention, so that its output is not computed here.";
    dimension = Math.min(dimension, Math.max(0, valueWidth - 1));
    fill();
  }

  function fill() {
    if (!shown?.steps.output) return;
    const { output } = shown.steps;
    const count = all ? output.length : Math.min(FEW_DIMENSIONS, output.length);
    const most = output.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
    more.hidden = output.length <= FEW_DIMENSIONS;
    more.textContent = all ? `Show ${FEW_DIMENSIONS}` : `Show all ${output.length}`;
    if (dimension >= count) dimension = 0;
    const lines = [...output.subarray(0, count)].map((value, each) => {
      const pick = make("button", { type: "button", class: "dimension", "aria-label": `Dimension ${each}: ${number(value)}, show its terms`, onclick: () => choose(each) }, String(each));
      return make(
        "tr",
        { "data-dimension": each, "data-output": value },
        make("th", { scope: "row" }, pick),
        make("td", {}, number(value)),
        make("td", { class: "bar" }, signedBar(most > 0 ? value / most : 0)),
      );
    });
    dimensions.replaceChildren(
      make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Dimension"), make("th", { scope: "col" }, "Output"), make("td"))), make("tbody", {}, ...lines)),
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
  const { terms, others, sum } = valueTerms(head, steps.weights, dimension, FEW_TERMS);
  const most = terms.reduce((largest, { term }) => Math.max(largest, Math.abs(term)), 0);
  const rest = keys.length - terms.length;
  const title = (/** @type {string} */ text) => make("th", { scope: "col" }, text);
  return make(
    "div",
    { class: "wide" },
    make(
      "table",
      {},
      make("caption", {}, `Dimension ${dimension}: its largest terms`),
      make("thead", {}, make("tr", {}, title("Key"), title("Token"), title("Weight"), title("× Value"), title("= Term"), make("td"))),
      make(
        "tbody",
        {},
        ...terms.map(({ key, weight, value, term }) =>
          make(
            "tr",
            { "data-key": key },
            make("td", {}, String(key)),
            make("th", { scope: "row" }, token(keys[key] ?? "")),
            make("td", {}, weightText(weight)),
            make("td", {}, number(value)),
            make("td", {}, number(term)),
            make("td", { class: "bar" }, signedBar(most > 0 ? term / most : 0)),
          ),
        ),
        rest > 0 && make("tr", {}, make("th", { scope: "row", colspan: 4 }, `The other ${rest} keys together`), make("td", {}, number(others)), make("td")),
      ),
      make("tfoot", {}, make("tr", {}, make("th", { scope: "row", colspan: 4 }, "Sum"), make("td", { "data-sum": sum }, number(sum)), make("td"))),
    ),
  );
}
