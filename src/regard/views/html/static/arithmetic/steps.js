/** The steps in the order of the definition: a formula, what it means, and the numbers of the chosen key. */

import { products } from "../core/attention.js";
import { element, numberText, token } from "../core/dom.js";
import { signedBar } from "../row/bars.js";
import { formula, fraction, symbol, exponential, scaleFormula, sumOver } from "../row/formula.js";
import { valueAt, isPaperScale, signedText, softmaxParts, stepNames, weightText } from "../row/format.js";

/** @typedef {import("./arithmetic.js").Row} Row */
/** @typedef {import("../core/dom.js").Child} Child */

/** The list of steps. What was unfolded stays unfolded when another key is chosen. */
export function stepList() {
  const heading = element("h2", { "aria-live": "polite" });
  const list = element("ol", { class: "steps" });
  const root = element("section", { class: "steps-of-key" }, heading, list);
  let unfolded = false;

  /** @param {Row} row */
  function update(row) {
    heading.replaceChildren("Query ", String(row.query), " ", token(row.queries[row.query] ?? ""), " and key ", String(row.key), " ", token(row.keys[row.key] ?? ""));
    const folded = element("details", { open: unfolded, ontoggle: () => ((unfolded = folded.open), fill()) }, element("summary", {}, `The ${row.head.dKey} products`));
    const fill = () => {
      if (folded.open && folded.childElementCount === 1) folded.append(productTable(row));
    };
    fill();
    const items = stepNames(row.head).map((name) => STEP_ITEMS[name](row, folded));
    list.replaceChildren(...items, weightItem(row), ...(row.head.v ? [outputItem(row)] : []));
  }
  return { root, update };
}

/**
 * @param {string} name of the step
 * @param {string} title
 * @param {Child} symbols
 * @param {Child[]} numbers
 * @param {...Child} description
 */
function listItem(name, title, symbols, numbers, ...description) {
  return element(
    "li",
    { "data-step": name },
    element("div", { class: "step" }, element("b", {}, title), symbols),
    element("p", { class: "numbers" }, ...numbers),
    ...description.map((terms) => (typeof terms === "string" ? element("p", { class: "quiet" }, terms) : terms)),
  );
}

/** @type {Record<import("../row/format.js").StepName, (row: Row, folded: HTMLElement) => HTMLElement>} */
const STEP_ITEMS = {
  scores({ steps, key }, folded) {
    const symbols = formula("q dot k is the sum over d of q d times k d", symbol("q"), " · ", symbol("k"), " = ", sumOver("d"), " ", symbol("q", "d"), " ", symbol("k", "d"));
    return listItem("scores", "Score", symbols, ["q · k = ", result(valueAt(steps.scores, key))], "How well the key fits the query: large where both vectors point the same way.", folded);
  },
  scaled({ head, steps, key }) {
    const isPaper = isPaperScale(head);
    const symbols = element("span", {}, "× ", scaleFormula(head.scale, head.dKey, isPaper));
    const reason = isPaper
      ? `So that scores do not grow with the ${head.dKey} dimensions of a key (d_key) that they are summed over.`
      : "This model's own factor, the same for every key.";
    return listItem("scaled", "Scale", symbols, [`${numberText(valueAt(steps.scores, key))} × ${numberText(head.scale)} = `, result(valueAt(steps.scaled, key))], reason);
  },
  capped({ head, steps, key }) {
    const cap = String(head.softcap);
    const symbols = formula(`${cap} times tanh of the score divided by ${cap}`, `${cap} · tanh(`, symbol("s"), ` / ${cap})`);
    const numbers = [`${cap} · tanh(${numberText(valueAt(steps.scaled, key))} / ${cap}) = `, result(valueAt(steps.capped, key))];
    return listItem("capped", "Soft-cap", symbols, numbers, `Bends large scores, so that none passes ${cap}.`);
  },
  biased({ steps, key }) {
    const bias = valueAt(steps.biased, key) - valueAt(steps.capped, key);
    const numbers = [`${numberText(valueAt(steps.capped, key))} + ${inSum(bias)} = `, result(valueAt(steps.biased, key))];
    return listItem("biased", "Bias", formula("plus b", "+ ", symbol("b")), numbers, "A number that the model adds for this query and this key, such as for how far apart they are.");
  },
  masked({ head, steps, attention, query, key, keys }) {
    const isAllowed = head.allowed === null || head.allowed(query, key);
    const count = steps.masked.reduce((sum, score) => sum + (score > -Infinity ? 1 : 0), 0);
    const symbols = formula("minus infinity where the query may not attend", "−∞ where it may not attend");
    const description = `This query may attend to ${count} of ${keys.length} keys. Mask: ${attention.mask}.`;
    return listItem("masked", "Mask", symbols, [isAllowed ? "It may attend to this key: " : "It may not attend to this key: ", result(valueAt(steps.masked, key))], description);
  },
};

/** @param {Row} row */
function weightItem({ head, steps, key, order, keys }) {
  const { largest, sum, sinkShare } = softmaxParts(steps.masked, head.sink);
  const symbols = formula(
    `e to the score, divided by the sum of e to the score over all keys${head.sink === null ? "" : " and the sink"}`,
    fraction([exponential(symbol("s"))], [sumOver("j"), " ", exponential(symbol("s", "j")), head.sink === null ? "" : " + ", head.sink === null ? null : exponential("sink")]),
  );
  const weight = result(valueAt(steps.weights, key), weightText(valueAt(steps.weights, key)));
  if (largest === -Infinity) return listItem("weights", "Softmax", symbols, ["weight = ", weight], "There is nothing that this query may attend to: all its weights are 0.");
  const score = valueAt(steps.masked, key);
  const numbers = [
    "exp(score − largest) / sum = ",
    `exp(${numberText(score)} − ${inSum(largest)}) / ${numberText(sum)}`,
    ` = ${numberText(Math.exp(score - largest))} / ${numberText(sum)} = `,
    weight,
  ];
  const strongest = order[0] ?? 0;
  const owner =
    head.sink !== null && head.sink >= largest
      ? ["the sink"]
      : [`key ${strongest} `, token(keys[strongest] ?? "")];
  return listItem(
    "weights",
    "Softmax",
    symbols,
    numbers,
    element("p", { class: "quiet" }, `The largest score is ${numberText(largest)}, of `, ...owner, "; it is taken from each first, which changes no weight and keeps exp small."),
    score === -Infinity && "exp(−∞) is 0: a masked key gets nothing.",
    sinkShare !== null &&
      element("p", { class: "quiet" }, "The head has a sink, a score of its own that belongs to no key: ", element("span", { "data-sink": sinkShare }, `${numberText(Number(head.sink))} takes ${weightText(sinkShare)}`), " of the row; the weights sum to the rest."),
  );
}

/** @param {Row} row */
function outputItem({ steps, key }) {
  const symbols = formula("the sum over all keys of weight times value", sumOver("j"), " ", symbol("w", "j"), " ", symbol("v", "j"));
  return listItem("output", "Output", symbols, [`${weightText(valueAt(steps.weights, key))} of this key's value goes into it.`], "Below, dimension by dimension.");
}

/**
 * A number after a sign: a negative one in brackets.
 * @param {number} value
 */
function inSum(value) {
  return value < 0 ? `(${numberText(value)})` : numberText(value);
}

/**
 * @param {number} value
 * @param {string} [text]
 */
function result(value, text = numberText(value)) {
  return element("b", { class: "result", "data-value": value }, text);
}

/** @param {Row} row */
function productTable({ head, query, key }) {
  const terms = products(head, query, key);
  const most = Math.max(...terms.map(({ product }) => Math.abs(product)));
  const sum = terms.reduce((total, { product }) => total + product, 0);
  const largest = terms
    .map(({ product }, dimension) => ({ product, dimension }))
    .sort((a, b) => Math.abs(b.product) - Math.abs(a.product))
    .slice(0, 3)
    .map(({ product, dimension }) => `dimension ${dimension} (${signedText(product, 2)})`);
  const line = (/** @type {(typeof terms)[number]} */ { q, k, product }, /** @type {number} */ dimension) =>
    element(
      "tr",
      { "data-dimension": dimension },
      element("th", { scope: "row" }, String(dimension)),
      ...[q, k, product].map((value) => element("td", {}, numberText(value))),
      element("td", { class: "bar" }, signedBar(most > 0 ? product / most : 0)),
    );
  const head3 = [symbol("q", "d"), symbol("k", "d"), element("span", {}, symbol("q", "d"), " × ", symbol("k", "d"))];
  return element(
    "div",
    { class: "wide products" },
    element("p", { class: "quiet" }, `The largest are of ${largest.join(", ")}.`),
    element(
      "table",
      {},
      element("caption", { class: "unseen" }, "The products by dimension"),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Dimension"), ...head3.map((name) => element("th", { scope: "col" }, name)), element("td"))),
      element("tbody", {}, ...terms.map(line)),
      element("tfoot", {}, element("tr", {}, element("th", { scope: "row", colspan: 3 }, "Sum: q · k"), element("td", { "data-sum": sum }, numberText(sum)), element("td"))),
    ),
  );
}
