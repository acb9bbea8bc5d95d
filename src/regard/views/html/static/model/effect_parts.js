/** The parts of the page's own model that are removed one at a time: their names, their edits, and what was looked at. */

import { HeadWeights } from "./attention_weights.js";

/** @typedef {import("../core/data.js").EffectPart} EffectPart */
/** @typedef {import("../live/engine.js").ModelEdit} ModelEdit */
/** @typedef {import("./effect_summary.js").Over} Over */
/** @typedef {import("./facts.js").AttentionRun} AttentionRun */

/**
 * A part, and the edits that remove it.
 * @typedef {object} Removal
 * @property {EffectPart} part without its effect
 * @property {ModelEdit[]} edits
 */

/** Which attention is held against the effects, in words. */
export const LOOKED_AT = {
  heads: "attention from the last token to the token that gets most, but the first and itself",
  layers: "mean attention of its heads from the last token to the token that gets most, but the first and itself",
  tokens: "attention from the last token, mean over all layers and heads",
};

/**
 * All parts of a run, in the order of the model or of the text.
 * @param {AttentionRun} run
 * @param {Over} over
 * @param {import("./facts.js").ModelShape & {tokens: string[]}} options
 * @returns {Removal[]}
 */
export function removals(run, over, options) {
  const rows = lastRows(run, options);
  return over === "tokens" ? tokenRemovals(rows, options.tokens) : over === "heads" ? headRemovals(rows) : layerRemovals(rows);
}

/**
 * The weights of the last token, of each layer's heads.
 * @param {AttentionRun} run
 * @param {import("./facts.js").ModelShape} shape
 */
function lastRows({ n, attentions }, { numHeads, dHead, scale }) {
  const weights = new HeadWeights({ n, dHead, scale });
  return attentions.map((layer) => Array.from({ length: numHeads }, (_, head) => weights.computeRow(layer, head, n - 1).slice()));
}

/** @param {Float64Array[][]} rows @returns {Removal[]} */
function headRemovals(rows) {
  return rows.flatMap((heads, attention) =>
    heads.map((row, head) => ({
      part: { name: `${attention}.${head}`, attention, head, token: null, effect: null, estimate: null, looked_at: mostLookedAt(row) },
      edits: [switchedOff(attention, head)],
    })),
  );
}

/** @param {Float64Array[][]} rows @returns {Removal[]} */
function layerRemovals(rows) {
  return rows.map((heads, attention) => {
    const lookedAt = heads.reduce((sum, row) => sum + mostLookedAt(row), 0) / heads.length;
    return {
      part: { name: `${attention}`, attention, head: null, token: null, effect: null, estimate: null, looked_at: lookedAt },
      edits: heads.map((_, head) => switchedOff(attention, head)),
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
    edits: rows.flatMap((layer, attention) =>
      layer.flatMap((_, head) => tokens.flatMap((_, query) => (query === place ? [] : [{ attention, head, query, off: false, edits: { removedKeys: [place] } }]))),
    ),
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
 * @param {number} attention
 * @param {number} head
 * @returns {ModelEdit}
 */
function switchedOff(attention, head) {
  return { attention, head, query: null, off: true, edits: {} };
}

/**
 * A token in quotes, as Python writes it.
 * @param {string} token
 */
function quoted(token) {
  return token.includes("'") && !token.includes('"') ? `"${token}"` : `'${token.replace(/[\\']/gu, "\\$&")}'`;
}
