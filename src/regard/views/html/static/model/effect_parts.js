/** The parts of the page's own model that are removed one at a time: their names, their edits, and what was looked at. */

import { HeadWeights } from "./attention_weights.js";

/** @typedef {import("../core/data.js").EffectPart} EffectPart */
/** @typedef {import("./effect_summary.js").Over} Over */
/** @typedef {import("./encoder.js").HeadEdit} HeadEdit */
/** @typedef {import("./encoder.js").Run} Run */
/** @typedef {(attention: number, head: number) => HeadEdit} Ablate what takes the place of a head's output */

/**
 * A part, and the edits that remove it.
 * @typedef {object} Removal
 * @property {EffectPart} part without its effect
 * @property {HeadEdit[]} edits
 * @property {number[]} hiddenTokens
 */

/** Which attention is held against the effects, in words. */
export const LOOKED_AT = {
  heads: "attention from the last token to the token that gets most, but the first and itself",
  layers: "mean attention of its heads from the last token to the token that gets most, but the first and itself",
  tokens: "attention from the last token, mean over all layers and heads",
};

/**
 * All parts of a run, in the order of the model or of the text.
 * @param {Run} run
 * @param {Over} over
 * @param {import("./facts.js").ModelShape & {tokens: string[]}} options
 * @param {Ablate} ablate
 * @returns {Removal[]}
 */
export function removals(run, over, options, ablate) {
  const rows = lastRows(run, options);
  if (over === "tokens") return tokenRemovals(rows, options.tokens);
  return over === "heads" ? headRemovals(rows, ablate) : layerRemovals(rows, ablate);
}

/**
 * Zeros in place of a head's output, the mean of its outputs over a source, or those of the source at the same positions.
 * @param {string} ablation "zero", "mean" or "resample"
 * @param {number} n tokens of the text
 * @param {Run} source
 * @param {import("./facts.js").ModelShape} shape
 * @returns {Ablate}
 */
export function ablationOf(ablation, n, source, { dHead }) {
  const size = source.n * dHead;
  const outputs = (/** @type {number} */ attention, /** @type {number} */ head) =>
    /** @type {import("./encoder.js").RunAttention} */ (source.attentions[attention]).output.subarray(head * size, (head + 1) * size);
  return (attention, head) => {
    const edit = { attention, head, query: null, off: ablation === "zero", edits: {} };
    if (ablation === "zero") return edit;
    const output = outputs(attention, head);
    return { ...edit, output: ablation === "mean" ? repeatedMean(output, dHead, n) : output };
  };
}

/**
 * The mean of some rows, as often as the text has tokens.
 * @param {Float32Array} rows
 * @param {number} width
 * @param {number} n
 */
function repeatedMean(rows, width, n) {
  const sums = new Float64Array(width);
  rows.forEach((each, i) => (sums[i % width] = Number(sums[i % width]) + each));
  return Float32Array.from({ length: n * width }, (_, i) => (Number(sums[i % width]) * width) / rows.length);
}

/**
 * The weights of the last token, of each layer's heads.
 * @param {Run} run
 * @param {import("./facts.js").ModelShape} shape
 */
function lastRows({ n, attentions }, { numHeads, dHead, scale }) {
  const weights = new HeadWeights({ n, dHead, scale });
  return attentions.map((layer) => Array.from({ length: numHeads }, (_, head) => weights.computeRow(layer, head, n - 1).slice()));
}

/** @param {Float64Array[][]} rows @param {Ablate} ablate @returns {Removal[]} */
function headRemovals(rows, ablate) {
  return rows.flatMap((heads, attention) =>
    heads.map((row, head) => ({
      part: { name: `${attention}.${head}`, attention, head, token: null, effect: null, estimate: null, looked_at: mostLookedAt(row) },
      edits: [ablate(attention, head)],
      hiddenTokens: [],
    })),
  );
}

/** @param {Float64Array[][]} rows @param {Ablate} ablate @returns {Removal[]} */
function layerRemovals(rows, ablate) {
  return rows.map((heads, attention) => {
    const lookedAt = heads.reduce((sum, row) => sum + mostLookedAt(row), 0) / heads.length;
    return {
      part: { name: `${attention}`, attention, head: null, token: null, effect: null, estimate: null, looked_at: lookedAt },
      edits: heads.map((_, head) => ablate(attention, head)),
      hiddenTokens: [],
    };
  });
}

/**
 * Each token is hidden from all others in every layer; it still attends to itself.
 * @param {Float64Array[][]} rows
 * @param {string[]} tokens
 * @returns {Removal[]}
 */
function tokenRemovals(rows, tokens) {
  const heads = rows.flat();
  return tokens.map((token, place) => ({
    part: {
      ...{ name: `${quoted(token)}@${place}`, attention: null, head: null, token: place, effect: null, estimate: null },
      looked_at: heads.reduce((sum, row) => sum + Number(row[place]), 0) / heads.length,
    },
    edits: [],
    hiddenTokens: [place],
  }));
}

/**
 * The largest weight on another token than the first, which many heads use as a sink, and the last, which is the query.
 * @param {Float64Array} row of the last token
 */
function mostLookedAt(row) {
  return row.subarray(1, -1).reduce((most, weight) => Math.max(most, weight), 0);
}

/**
 * A token in quotes, as Python writes it.
 * @param {string} token
 */
function quoted(token) {
  return token.includes("'") && !token.includes('"') ? `"${token}"` : `'${token.replace(/[\\']/gu, "\\$&")}'`;
}
