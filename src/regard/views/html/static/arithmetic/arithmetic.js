/** The view in which every number of a row is followed from the products of its query to the output. */

import { arithmeticOutput } from "./arithmeticoutput.js";
import { arithmeticSteps } from "./arithmeticsteps.js";
import { arithmeticTable } from "./arithmetictable.js";
import { make, percent } from "../core/dom.js";
import { wholeFormula } from "../row/rowformula.js";
import { hasRows, queryPicker, rowMissing } from "../row/rowpicker.js";
import { isPapersScale, strongestFirst } from "../row/rowparts.js";

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

/** @type {import("../main.js").View} */
export const arithmetic = {
  name: "arithmetic",
  title: "Arithmetic",
  help: "Each number of one row, from the query and the keys to the weights and the output. Choose a query, then a key in the table: the steps follow it.",
  fits: hasRows,
  mount(root, page) {
    const { data, store } = page;
    const picker = queryPicker(page);
    const whole = make("p", { class: "whole" });
    const steps = arithmeticSteps();
    const table = arithmeticTable((key) => store.set({ key }));
    const output = arithmeticOutput();
    const proof = make("section", { class: "proof-of-row" });
    const body = make("div", {}, whole, make("div", { class: "beside" }, steps.root, table.root), output.root, proof);
    const missing = make("div");
    root.append(picker.root, missing, body);
    /** @type {number[]} */
    let order = [];

    return (state, before) => {
      picker.update(state, before);
      const notice = rowMissing(page, state);
      missing.replaceChildren(...(notice ? [notice] : []));
      body.hidden = notice !== null;
      const { attention: index, head: place, query } = state;
      const head = data.head(index, place);
      const computed = data.row(index, place, query);
      if (!head || !computed) return;
      const fresh = !before || before.attention !== index || before.head !== place || before.query !== query;
      if (!fresh && before.key === state.key) return;
      if (fresh) order = strongestFirst(computed.weights);
      const attention = data.attention(index);
      const key = state.key ?? order[0] ?? 0;
      /** @type {Row} */
      const row = { head, steps: computed, attention, query, key, order, ...data.tokens(index) };
      if (fresh) {
        whole.replaceChildren("One row of attention: ", wholeFormula(head, isPapersScale(head)));
        proof.replaceChildren(...proofOfRow(attention));
      }
      steps.update(row);
      table.update(row, fresh);
      if (fresh) output.update(row);
    };
  },
};

/**
 * Why these numbers may be believed.
 * @param {Attention} attention
 */
function proofOfRow({ error, verified, within, dropout }) {
  const held =
    error === null
      ? "There is no output of the model's own attention to compare with, or no query that may look at anything: nothing proves these numbers."
      : `regard put weights @ v of this layer beside what the model's own attention put out: they differ by ${error.toExponential(1)} of its largest value, at most.`;
  const means =
    error === null
      ? ""
      : verified
        ? " That is rounding: these queries, keys and values, in these steps, are what the model computes."
        : " That is more than rounding: the model does something that these steps do not show. Do not trust them.";
  const kept =
    within > 0
      ? `Queries, keys and values are rounded in this page, to keep it small. A weight that is computed from them is at most ${percent(within, within < 0.0001 ? 4 : 2)} from the exact one.`
      : "";
  const dropped = dropout > 0 ? `The model then dropped ${percent(dropout, 0)} of the weights at random (dropout): these are the weights before.` : "";
  return [
    make("h2", {}, "Is it true?"),
    make("p", { class: error !== null && !verified ? "doubt" : "", "data-error": error }, held, means),
    kept && make("p", {}, kept),
    dropped && make("p", {}, dropped),
  ].filter((part) => part instanceof Node);
}
