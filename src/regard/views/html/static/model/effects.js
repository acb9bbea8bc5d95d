/** What matters to a text's vector: the page's own model runs again without each head, layer or token. */

import { LOOKED_AT, removals } from "./effect_parts.js";
import { summary } from "./effect_summary.js";
import { cosine } from "./movement.js";

/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("../core/data.js").EffectPart} EffectPart */
/** @typedef {import("../live/engine.js").ModelEdit} ModelEdit */
/** @typedef {import("./effect_summary.js").Over} Over */
/** @typedef {import("./movement.js").VectorRun} VectorRun */

/**
 * What effects need of the model.
 * @template {VectorRun} Run
 * @typedef {{forward: (ids: number[], options: {edits: ModelEdit[], after: Run, onLayer?: () => unknown}) => Promise<{vector: Float32Array}>}} Forward
 */

/**
 * @typedef {object} EffectOptions
 * @property {string} over "heads", "layers" or "tokens"
 * @property {string} metric "cosine", or "similarity" with the second text
 * @property {string} ablation "zero"; tokens are hidden whatever it is
 * @property {Float32Array | null} secondVector of the second text
 * @property {string[]} tokens of the text, as they are shown
 * @property {() => unknown} [onLayer] awaited after each layer of each run; it may throw, to end the work
 */

/**
 * A metric of a text's vector, above or below its value for the model as it is.
 * @typedef {{name: string, of: (vector: Float32Array) => number}} Metric
 */

/** The significant digits of a number. */
const DIGITS = 6;

/**
 * The effects of all parts one after another, each computed exactly.
 *
 * After each part it yields what is known so far: the parts in the order of the model or of the text, each with the
 * metric of the model as it is minus the metric without this part.
 * @template {VectorRun} Run
 * @param {Forward<Run>} encoder
 * @param {number[]} ids of the text
 * @param {Run} run of these ids, without edits
 * @param {EffectOptions & import("./facts.js").ModelShape} options
 * @returns {AsyncGenerator<{done: number, total: number, sofar: EffectFacts}>}
 */
export async function* effects(encoder, ids, run, options) {
  const over = checkedOver(options);
  const metric = metricOf(run, options);
  const baseline = metric.of(run.vector);
  const every = removals(run, over, options);
  /** @type {EffectPart[]} */
  const parts = [];
  for (const { part, edits } of every) {
    const { onLayer } = options;
    // Of one token there is nobody to hide it from.
    const without = edits.length === 0 ? run : await encoder.forward(ids, { edits, after: run, ...(onLayer && { onLayer }) });
    parts.push({ ...part, effect: rounded(baseline - metric.of(without.vector)), looked_at: rounded(Number(part.looked_at)) });
    yield { done: parts.length, total: every.length, sofar: effectFacts(over, metric.name, baseline, [...parts]) };
  }
}

/**
 * @param {Over} over
 * @param {string} metric
 * @param {number} baseline
 * @param {EffectPart[]} parts
 * @returns {EffectFacts}
 */
function effectFacts(over, metric, baseline, parts) {
  return {
    over,
    metric,
    ablation: over === "tokens" ? "block, nobody may look there" : "zero, the part's output is set to zero",
    method: "computed exactly",
    looked_at: LOOKED_AT[over],
    baseline: rounded(baseline),
    num_texts: 1,
    summary: summary(over, parts, baseline),
    notes: [],
    text: over === "tokens" ? 0 : null,
    has_exact: true,
    has_estimates: false,
    parts,
    num_parts: parts.length,
  };
}

/**
 * @param {VectorRun} run
 * @param {EffectOptions} options
 * @returns {Metric}
 */
function metricOf(run, { metric, secondVector }) {
  if (metric === "cosine") return { name: "cosine()", of: (vector) => (vector === run.vector ? 0 : 1 - cosine(vector, run.vector)) };
  if (metric !== "similarity") throw new RangeError(`the metric "${metric}": it is "cosine" or "similarity"`);
  if (secondVector === null) throw new RangeError('the metric "similarity" compares two texts, and there is one: give a second text, or take "cosine"');
  return { name: "similarity with the second text", of: (vector) => cosine(vector, secondVector) };
}

/**
 * @param {EffectOptions} options
 * @returns {Over}
 */
function checkedOver({ over, ablation }) {
  if (over !== "heads" && over !== "layers" && over !== "tokens") throw new RangeError(`effects over "${over}": the model in this page has those over "heads", "layers" and "tokens"`);
  if (over !== "tokens" && ablation !== "zero") throw new RangeError(`the ablation "${ablation}": the model in this page has "zero"`);
  return over;
}

/** @param {number} value */
function rounded(value) {
  return Number(value.toPrecision(DIGITS));
}
