/** The view in which every number of a row is followed from the products of its query to the output. */

import { outputTable } from "./output.js";
import { stepList } from "./steps.js";
import { keyTable } from "./table.js";
import { element, percentText } from "../core/dom.js";
import { attentionFormula } from "../row/formula.js";
import { hasRows, queryPicker, missingRowNotice } from "../row/picker.js";
import { isPaperScale, keysByWeight } from "../row/format.js";

/** @typedef {import("../core/data.js").Attention} Attention */

/**
 * A row and what is chosen in it: what the parts of this view draw.
 * @typedef {object} Row
 * @property {import("../core/attention.js").Head} head
 * @property {import("../core/attention.js").Steps} steps
 * @property {Attention} attention
 * @property {number} query
 * @property {number} key the one that is chosen; the strongest where the reader chose none
 * @property {number[]} order keys by weight, the largest first
 * @property {string[]} queries tokens
 * @property {string[]} keys tokens
 */

/** @type {import("../page.js").View} */
export const arithmetic = {
  name: "arithmetic",
  title: "Arithmetic",
  help: "Each number of one row, from the query and the keys to the weights and the output. Choose a query, then a key in the table: the steps follow it.",
  fits: hasRows,
  mount(root, page) {
    const { data, store } = page;
    const picker = queryPicker(page);
    const formulaLine = element("p", { class: "whole" });
    const steps = stepList();
    const table = keyTable((key) => store.set({ key }));
    const output = outputTable();
    const verificationSection = element("section", { class: "proof-of-row" });
    const body = element("div", {}, formulaLine, element("div", { class: "beside" }, steps.root, table.root), output.root, verificationSection);
    const missing = element("div");
    root.append(picker.root, missing, body);
    /** @type {number[]} */
    let order = [];

    return (state, before) => {
      picker.update(state, before);
      const notice = missingRowNotice(page, state);
      missing.replaceChildren(...(notice ? [notice] : []));
      body.hidden = notice !== null;
      const { attention: index, head: place, query } = state;
      const head = data.head(index, place);
      const computed = data.row(index, place, query);
      if (!head || !computed) return;
      const isNewRow = !before || before.attention !== index || before.head !== place || before.query !== query;
      if (!isNewRow && before.key === state.key) return;
      if (isNewRow) order = keysByWeight(computed.weights);
      const attention = data.attention(index);
      const key = state.key ?? order[0] ?? 0;
      /** @type {Row} */
      const row = { head, steps: computed, attention, query, key, order, ...data.tokens(index) };
      if (isNewRow) {
        formulaLine.replaceChildren("One row of attention: ", attentionFormula(head, isPaperScale(head)));
        verificationSection.replaceChildren(...verification(attention));
      }
      steps.update(row);
      table.update(row, isNewRow);
      if (isNewRow) output.update(row);
    };
  },
};

/**
 * The verification of the numbers.
 * @param {Attention} attention
 */
function verification({ max_error: maxError, verified, max_weight_error: weightError, dropout, computed_here: computedHere }) {
  const comparison =
    maxError === null
      ? "Not verified: the output of the model's own attention is unknown, or no query may attend to any key."
      : `regard compared weights @ v of this layer with the output of the model's own attention: they differ by ${maxError.toExponential(1)} of its largest value, at most.`;
  const conclusion =
    maxError === null
      ? ""
      : verified
        ? " That is rounding: these queries, keys and values, in these steps, are what the model computes."
        : " That is more than rounding: the model does something that these steps do not show. Do not trust them.";
  const rounding = computedHere
    ? "The model in this page computed these queries, keys and values in 32 bits. Nothing is rounded, and the steps from them are in 64 bits."
    : weightError > 0
      ? `Queries, keys and values are rounded in this page, to keep it small. The max weight error is ${percentText(weightError, weightError < 0.0001 ? 4 : 2)}.`
      : "";
  const dropoutText = dropout > 0 ? `The model then dropped ${percentText(dropout, 0)} of the weights at random (dropout): these are the weights before.` : "";
  return [
    element("h2", {}, "Verification"),
    element("p", { class: maxError !== null && !verified ? "doubt" : "", "data-error": maxError }, comparison, conclusion),
    rounding && element("p", {}, rounding),
    dropoutText && element("p", {}, dropoutText),
  ].filter((part) => part instanceof Node);
}
