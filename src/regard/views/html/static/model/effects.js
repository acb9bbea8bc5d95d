/** What matters to a text's vector: the page's own model runs again without each head, layer or token. */

import { ablationOf, LOOKED_AT, removals } from "./effect_parts.js";
import { summary } from "./effect_summary.js";
import { InputError } from "./errors.js";
import { cosine } from "./movement.js";

/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("../core/data.js").EffectPart} EffectPart */
/** @typedef {import("./effect_summary.js").Over} Over */
/** @typedef {import("./encoder.js").Encoder} Encoder */
/** @typedef {import("./encoder.js").Run} Run */

/**
 * @typedef {object} EffectOptions
 * @property {string} over "heads", "layers" or "tokens"
 * @property {string} metric "cosine", or "similarity" with the second text
 * @property {string} ablation "zero", "mean" or "resample"; tokens are hidden whatever it is
 * @property {string[]} tokens of the text, as they are shown
 * @property {Float32Array | null} secondVector of the second text
 * @property {Run | null} [source] another text for "mean", which else is that of the text itself, and for "resample"
 * @property {import("./encoder.js").ForwardOptions["onLayer"]} [onLayer] awaited after each layer of each run; what it throws ends the work
 */

/**
 * A metric of a text's vector, above or below its value for the model as it is.
 * @typedef {{name: string, of: (vector: Float32Array) => number}} Metric
 */

/** The significant digits of a number. */
const DIGITS = 6;

/** How a head is ablated, in words. */
const ABLATIONS = {
  zero: "zero, the part's output is set to zero",
  mean: "mean, the part's output is set to its mean over the source",
  resample: "resample, the part's output is taken from another text of the source",
  block: "block, nobody may look there",
};

/**
 * The effects of all parts one after another, each computed exactly.
 *
 * After each part it yields what is known so far: the parts in the order of the model or of the text, each with the
 * metric of the model as it is minus the metric without this part. Throws an InputError for what it does not have.
 * @param {Encoder} encoder
 * @param {number[]} ids of the text
 * @param {Run} run of these ids, without edits
 * @param {EffectOptions & import("./facts.js").ModelShape} options
 * @returns {AsyncGenerator<{done: number, total: number, sofar: EffectFacts}>}
 */
export async function* effects(encoder, ids, run, options) {
  const { source = null, onLayer = null } = options;
  const over = checkedOver(options.over);
  const ablation = over === "tokens" ? "block" : checkedAblation(options.ablation, run, source);
  const metric = metricOf(run, options);
  const baseline = metric.of(run.vector);
  const every = removals(run, over, options, ablationOf(ablation, run.n, source ?? run, options));
  /** @type {EffectPart[]} */
  const parts = [];
  for (const { part, ...changes } of every) {
    const { vector } = await encoder.forward(ids, { ...changes, after: run, onLayer });
    parts.push({ ...part, effect: rounded(baseline - metric.of(vector)), looked_at: rounded(Number(part.looked_at)) });
    yield { done: parts.length, total: every.length, sofar: effectFacts(over, metric.name, ABLATIONS[ablation], baseline, [...parts]) };
  }
}

/**
 * @param {Over} over
 * @param {string} metric
 * @param {string} ablation
 * @param {number} baseline
 * @param {EffectPart[]} parts
 * @returns {EffectFacts}
 */
function effectFacts(over, metric, ablation, baseline, parts) {
  return {
    over,
    metric,
    ablation,
    method: "computed exactly",
    looked_at: LOOKED_AT[over],
    baseline: rounded(baseline),
    num_texts: 1,
    summary: summary(over, parts, baseline),
    notes: over === "tokens" ? ["a hidden token still attends to itself"] : [],
    text: over === "tokens" ? 0 : null,
    has_exact: true,
    has_estimates: false,
    parts,
    num_parts: parts.length,
  };
}

/**
 * @param {Run} run
 * @param {EffectOptions} options
 * @returns {Metric}
 */
function metricOf(run, { metric, secondVector }) {
  if (metric === "cosine") return { name: "cosine()", of: (vector) => 1 - cosine(vector, run.vector) };
  if (metric !== "similarity") throw new InputError(`the metric "${metric}": it is "cosine" or "similarity"`);
  if (secondVector === null) throw new InputError('the metric "similarity" compares two texts, and there is one: give a second text, or take "cosine"');
  return { name: "similarity with the second text", of: (vector) => cosine(vector, secondVector) };
}

/**
 * @param {string} over
 * @returns {Over}
 */
function checkedOver(over) {
  if (over === "heads" || over === "layers" || over === "tokens") return over;
  throw new InputError(`effects over "${over}": the model in this page has those over "heads", "layers" and "tokens"`);
}

/**
 * @param {string} ablation
 * @param {Run} run
 * @param {Run | null} source
 */
function checkedAblation(ablation, run, source) {
  if (ablation === "zero" && source) throw new InputError('the ablation "zero" takes no source text: leave it out, or take "mean" or "resample"');
  if (ablation === "zero" || ablation === "mean") return ablation;
  if (ablation !== "resample") throw new InputError(`the ablation "${ablation}": it is "zero", "mean" or "resample"`);
  if (!source) throw new InputError('the ablation "resample" takes the outputs of another text: give a source text, or take "mean"');
  if (source.n !== run.n) throw new InputError(`the ablation "resample" takes the outputs at the same positions, and the source has ${source.n} tokens, the text ${run.n}: give a source of as many tokens, or take "mean"`);
  return ablation;
}

/** @param {number} value */
function rounded(value) {
  return Number(value.toPrecision(DIGITS));
}
