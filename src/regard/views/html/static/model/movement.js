/** What edits of the model moved: the text's vector, and in each later head the weight that changed most. */

import { steps } from "../core/attention.js";
import { HeadWeights } from "./attention_weights.js";

/** @typedef {import("../core/attention.js").Head} Head */
/** @typedef {import("../live/engine.js").HeadChange} HeadChange */
/** @typedef {import("../live/engine.js").ModelEdit} ModelEdit */
/** @typedef {import("../live/engine.js").Movement} Movement */
/** @typedef {import("./encoder.js").RunAttention} RunAttention */
/** @typedef {Pick<import("./encoder.js").Run, "n" | "attentions" | "vector">} VectorRun */

/**
 * Compares a run with one in which some heads were edited.
 *
 * The weights of an edited row are those after the edit. A head that is switched off keeps its weights: its output is zero.
 * @param {VectorRun} before
 * @param {VectorRun} after
 * @param {import("./facts.js").ModelShape & {edits: ModelEdit[], secondVector: Float32Array | null}} options
 * @returns {Movement}
 */
export function movement(before, after, { numHeads, dHead, scale, edits, secondVector }) {
  const shape = { n: before.n, dHead, scale };
  const [old, edited] = [new HeadWeights(shape), new HeadWeights(shape)];
  const first = Math.min(...edits.map(({ attention }) => attention));
  /** @type {HeadChange[]} */
  const heads = [];
  for (let attention = first; attention < before.attentions.length; attention++) {
    const layers = /** @type {[RunAttention, RunAttention]} */ ([before.attentions[attention], after.attentions[attention]]);
    for (let head = 0; head < numHeads; head++) {
      old.compute(layers[0], head);
      edited.compute(layers[1], head);
      editRows(edited, layers[1], head, edits.filter((edit) => edit.attention === attention && edit.head === head));
      heads.push({ attention, head, ...largestChange(old, edited) });
    }
  }
  return {
    cosine: cosine(before.vector, after.vector),
    distance: Math.hypot(...before.vector.map((each, i) => each - Number(after.vector[i]))),
    similarity: secondVector && cosine(after.vector, secondVector),
    heads,
    next: null,
    notes: [],
  };
}

/**
 * The cosine of two vectors; 0 where one is zero.
 * @param {Float32Array} one
 * @param {Float32Array} other
 */
export function cosine(one, other) {
  let [product, lengthOne, lengthOther] = [0, 0, 0];
  for (let i = 0; i < one.length; i++) {
    const [a, b] = [Number(one[i]), Number(other[i])];
    product += a * b;
    lengthOne += a * a;
    lengthOther += b * b;
  }
  return product === 0 ? 0 : Math.max(-1, Math.min(1, product / Math.sqrt(lengthOne * lengthOther)));
}

/**
 * Replaces the weights of edited rows: of several edits of a row the last counts, as in the model.
 * @param {HeadWeights} head
 * @param {RunAttention} layer
 * @param {number} place
 * @param {ModelEdit[]} edits of this head
 */
function editRows(head, layer, place, edits) {
  const { n, dHead, scale, weights } = head;
  const part = (/** @type {Float32Array} */ tensor) => tensor.subarray(place * n * dHead, (place + 1) * n * dHead);
  /** @type {Head} */
  const facts = { ...{ q: part(layer.q), k: part(layer.k), v: null, dKey: dHead, dValue: dHead, queries: n, keys: n, rows: null, lse: null, scale }, ...{ softcap: null, sink: null, bias: null, allowed: null } };
  for (const { query, off, edits: rowEdits } of edits) {
    for (let row = query ?? 0; row < (query === null ? n : query + 1); row++) {
      if (off || Object.keys(rowEdits).length === 0) head.computeRow(layer, place, row);
      else weights.set(steps(facts, row, rowEdits).weights, row * n);
    }
  }
}

/**
 * @param {HeadWeights} before
 * @param {HeadWeights} after
 * @returns {Omit<HeadChange, "attention" | "head">}
 */
function largestChange({ weights: before, n }, { weights: after }) {
  let at = 0;
  let largest = 0;
  for (let i = 0; i < before.length; i++) {
    const change = Math.abs(Number(after[i]) - Number(before[i]));
    if (change > largest) [largest, at] = [change, i];
  }
  return { query: Math.floor(at / n), key: at % n, before: Number(before[at]), after: Number(after[at]) };
}
