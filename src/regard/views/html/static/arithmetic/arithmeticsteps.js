/** The steps in the order of the definition: a formula, what it means, and the numbers of the chosen key. */

import { products } from "../core/attention.js";
import { make, number, token } from "../core/dom.js";
import { signedBar } from "../row/rowbars.js";
import { formula, fraction, letter, power, scaleFormula, sumOver } from "../row/rowformula.js";
import { cell, isPapersScale, signedText, softmaxParts, stepsOfHead, weightText } from "../row/rowparts.js";

/** @typedef {import("./arithmetic.js").Row} Row */
/** @typedef {import("../core/dom.js").Child} Child */

/** The list of steps. What was unfolded stays unfolded when another key is chosen. */
export function arithmeticSteps() {
  const heading = make("h2", { "aria-live": "polite" });
  const list = make("ol", { class: "steps" });
  const root = make("section", { class: "steps-of-key" }, heading, list);
  let unfolded = false;

  /** @param {Row} row */
  function update(row) {
    heading.replaceChildren("Query ", String(row.query), " ", token(row.queries[row.query] ?? ""), " and key ", String(row.key), " ", token(row.keys[row.key] ?? ""));
    const folded = make("details", { open: unfolded, ontoggle: () => ((unfolded = folded.open), fill()) }, make("summary", {}, `The ${row.head.width} products`));
    const fill = () => {
      if (folded.open && folded.childElementCount === 1) folded.append(productTable(row));
    };
    fill();
    const items = stepsOfHead(row.head).map((name) => STEP_ITEMS[name](row, folded));
    list.replaceChildren(...items, weightItem(row), ...(row.head.v ? [outputItem(row)] : []));
  }
  return { root, update };
}

/**
 * @param {string} name of the step
 * @param {string} title
 * @param {Child} symbols
 * @param {Child[]} numbers
 * @param {...Child} says
 */
function stepItem(name, title, symbols, numbers, ...says) {
  return make(
    "li",
    { "data-step": name },
    make("div", { class: "step" }, make("b", {}, title), symbols),
    make("p", { class: "numbers" }, ...numbers),
    ...says.map((each) => (typeof each === "string" ? make("p", { class: "quiet" }, each) : each)),
  );
}

/** @type {Record<import("../row/rowparts.js").StepName, (row: Row, folded: HTMLElement) => HTMLElement>} */
const STEP_ITEMS = {
  scores({ steps, key }, folded) {
    const symbols = formula("q dot k is the sum over d of q d times k d", letter("q"), " · ", letter("k"), " = ", sumOver("d"), " ", letter("q", "d"), " ", letter("k", "d"));
    return stepItem("scores", "Score", symbols, ["q · k = ", result(cell(steps.scores, key))], "How well the key fits the query: large where both vectors point the same way.", folded);
  },
  scaled({ head, steps, key }) {
    const papers = isPapersScale(head);
    const symbols = make("span", {}, "× ", scaleFormula(head.scale, head.width, papers));
    const why = papers
      ? `So that scores do not grow with the ${head.width} dimensions of a key (d_key) that they are summed over.`
      : "This model's own factor, the same for every key.";
    return stepItem("scaled", "Scale", symbols, [`${number(cell(steps.scores, key))} × ${number(head.scale)} = `, result(cell(steps.scaled, key))], why);
  },
  capped({ head, steps, key }) {
    const cap = String(head.softcap);
    const symbols = formula(`${cap} times tanh of the score divided by ${cap}`, `${cap} · tanh(`, letter("s"), ` / ${cap})`);
    const numbers = [`${cap} · tanh(${number(cell(steps.scaled, key))} / ${cap}) = `, result(cell(steps.capped, key))];
    return stepItem("capped", "Soft-cap", symbols, numbers, `Bends large scores, so that none passes ${cap}.`);
  },
  biased({ steps, key }) {
    const bias = cell(steps.biased, key) - cell(steps.capped, key);
    const numbers = [`${number(cell(steps.capped, key))} + ${inSum(bias)} = `, result(cell(steps.biased, key))];
    return stepItem("biased", "Bias", formula("plus b", "+ ", letter("b")), numbers, "A number that the model adds for this query and this key, such as for how far apart they are.");
  },
  masked({ head, steps, attention, query, key, keys }) {
    const free = head.may === null || head.may(query, key);
    const count = steps.masked.reduce((sum, score) => sum + (score > -Infinity ? 1 : 0), 0);
    const symbols = formula("minus infinity where the query may not attend", "−∞ where it may not attend");
    const says = `This query may attend to ${count} of ${keys.length} keys. Mask: ${attention.mask}.`;
    return stepItem("masked", "Mask", symbols, [free ? "It may attend to this key: " : "It may not attend to this key: ", result(cell(steps.masked, key))], says);
  },
};

/** @param {Row} row */
function weightItem({ head, steps, key, order, keys }) {
  const { largest, sum, sinkShare } = softmaxParts(steps.masked, head.sink);
  const symbols = formula(
    `e to the score, divided by the sum of e to the score over all keys${head.sink === null ? "" : " and the sink"}`,
    fraction([power(letter("s"))], [sumOver("j"), " ", power(letter("s", "j")), head.sink === null ? "" : " + ", head.sink === null ? null : power("sink")]),
  );
  const weight = result(cell(steps.weights, key), weightText(cell(steps.weights, key)));
  if (largest === -Infinity) return stepItem("weights", "Softmax", symbols, ["weight = ", weight], "There is nothing that this query may attend to: all its weights are 0.");
  const score = cell(steps.masked, key);
  const numbers = [
    "exp(score − largest) / sum = ",
    `exp(${number(score)} − ${inSum(largest)}) / ${number(sum)}`,
    ` = ${number(Math.exp(score - largest))} / ${number(sum)} = `,
    weight,
  ];
  const strongest = order[0] ?? 0;
  const owner =
    head.sink !== null && head.sink >= largest
      ? ["the sink"]
      : [`key ${strongest} `, token(keys[strongest] ?? "")];
  return stepItem(
    "weights",
    "Softmax",
    symbols,
    numbers,
    make("p", { class: "quiet" }, `The largest score is ${number(largest)}, of `, ...owner, "; it is taken from each first, which changes no weight and keeps exp small."),
    score === -Infinity && "exp(−∞) is 0: a masked key gets nothing.",
    sinkShare !== null &&
      make("p", { class: "quiet" }, "The head has a sink, a score of its own that belongs to no key: ", make("span", { "data-sink": sinkShare }, `${number(Number(head.sink))} takes ${weightText(sinkShare)}`), " of the row; the weights sum to the rest."),
  );
}

/** @param {Row} row */
function outputItem({ steps, key }) {
  const symbols = formula("the sum over all keys of weight times value", sumOver("j"), " ", letter("w", "j"), " ", letter("v", "j"));
  return stepItem("output", "Output", symbols, [`${weightText(cell(steps.weights, key))} of this key's value goes into it.`], "Below, dimension by dimension.");
}

/**
 * A number as it stands behind a sign.
 * @param {number} value
 */
function inSum(value) {
  return value < 0 ? `(${number(value)})` : number(value);
}

/**
 * @param {number} value
 * @param {string} [text]
 */
function result(value, text = number(value)) {
  return make("b", { class: "result", "data-value": value }, text);
}

/** @param {Row} row */
function productTable({ head, query, key }) {
  const each = products(head, query, key);
  const most = Math.max(...each.map(({ product }) => Math.abs(product)));
  const sum = each.reduce((total, { product }) => total + product, 0);
  const largest = each
    .map(({ product }, dimension) => ({ product, dimension }))
    .sort((a, b) => Math.abs(b.product) - Math.abs(a.product))
    .slice(0, 3)
    .map(({ product, dimension }) => `dimension ${dimension} (${signedText(product, 2)})`);
  const line = (/** @type {(typeof each)[number]} */ { q, k, product }, /** @type {number} */ dimension) =>
    make(
      "tr",
      { "data-dimension": dimension },
      make("th", { scope: "row" }, String(dimension)),
      ...[q, k, product].map((value) => make("td", {}, number(value))),
      make("td", { class: "bar" }, signedBar(most > 0 ? product / most : 0)),
    );
  const head3 = [letter("q", "d"), letter("k", "d"), make("span", {}, letter("q", "d"), " × ", letter("k", "d"))];
  return make(
    "div",
    { class: "wide products" },
    make("p", { class: "quiet" }, `The largest are of ${largest.join(", ")}.`),
    make(
      "table",
      {},
      make("caption", { class: "unseen" }, "The products by dimension"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Dimension"), ...head3.map((name) => make("th", { scope: "col" }, name)), make("td"))),
      make("tbody", {}, ...each.map(line)),
      make("tfoot", {}, make("tr", {}, make("th", { scope: "row", colspan: 3 }, "Sum: q · k"), make("td", { "data-sum": sum }, number(sum)), make("td"))),
    ),
  );
}
