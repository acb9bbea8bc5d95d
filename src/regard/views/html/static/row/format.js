/** The numbers of a row and their text: the steps of a head, softmax parts, terms, keys by weight, weights as text. */

/** @typedef {import("../core/attention.js").Head} Head */
/** @typedef {import("../core/attention.js").Edits} Edits */
/** @typedef {import("../core/attention.js").Steps} Steps */
/** @typedef {"scores" | "scaled" | "capped" | "biased" | "masked"} StepName */

/**
 * The steps up to the softmax that a head has, in their order.
 * @param {Head} head
 * @returns {StepName[]}
 */
export function stepNames({ scale, softcap, bias, allowed }) {
  /** @type {StepName[]} */
  const names = ["scores"];
  if (scale !== 1) names.push("scaled");
  if (softcap !== null) names.push("capped");
  if (bias !== null) names.push("biased");
  if (allowed !== null) names.push("masked");
  return names;
}

/**
 * Whether the scale is the paper's, 1 / sqrt(d_key).
 * @param {Head} head
 */
export function isPaperScale({ scale, dKey }) {
  return Math.abs(scale * Math.sqrt(dKey) - 1) < 1e-4;
}

/**
 * What the softmax of a row is made of. The largest is -Infinity where there is nothing to attend to.
 * @param {Float64Array} masked
 * @param {number | null} sink as it goes into the softmax
 */
export function softmaxParts(masked, sink) {
  let largest = sink ?? -Infinity;
  for (const score of masked) if (score > largest) largest = score;
  if (largest === -Infinity) return { largest, sum: 0, sinkShare: null };
  let sum = sink === null ? 0 : Math.exp(sink - largest);
  const sinkShare = sum;
  for (const score of masked) sum += Math.exp(score - largest);
  return { largest, sum, sinkShare: sink === null ? null : sinkShare / sum };
}

/**
 * Keys by their weight, the largest first; equal ones in the order of the text.
 * @param {ArrayLike<number>} weights
 */
export function keysByWeight(weights) {
  const order = Array.from({ length: weights.length }, (_, key) => key);
  return order.sort((a, b) => valueAt(weights, b) - valueAt(weights, a) || a - b);
}

/**
 * The terms weight * value that one dimension of the output is the sum of, the largest first, and what the others come to.
 * @param {Head} head
 * @param {Float64Array} weights
 * @param {number} dimension
 * @param {number} count of terms
 */
export function valueTerms({ v, dValue }, weights, dimension, count) {
  const all = Array.from(weights, (weight, key) => {
    const value = v ? valueAt(v, key * dValue + dimension) : 0;
    return { key, weight, value, term: weight * value };
  });
  const sorted = [...all].sort((a, b) => Math.abs(b.term) - Math.abs(a.term) || a.key - b.key);
  const total = (/** @type {{term: number}[]} */ terms) => terms.reduce((sum, { term }) => sum + term, 0);
  return { terms: sorted.slice(0, count), rest: total(sorted.slice(count)), sum: total(all) };
}

/**
 * How far a vector moved: the cosine of the angle, and the length of the difference relative to the vector's own.
 * Null where a vector of length 0 leaves that open.
 * @param {ArrayLike<number>} before
 * @param {ArrayLike<number>} after
 */
export function vectorChange(before, after) {
  let dot = 0;
  let a = 0;
  let b = 0;
  let squaredDistance = 0;
  for (let i = 0; i < before.length; i++) {
    const [x, y] = [valueAt(before, i), valueAt(after, i)];
    dot += x * y;
    a += x * x;
    b += y * y;
    squaredDistance += (y - x) ** 2;
  }
  const cosine = a > 0 && b > 0 ? Math.min(1, Math.max(-1, dot / Math.sqrt(a * b))) : null;
  return { cosine, relative: a > 0 ? Math.sqrt(squaredDistance / a) : null };
}

/**
 * The next token with a position or a part of its text, searched from the current token on.
 * @param {string[]} tokens
 * @param {string} text
 * @param {number} from
 * @param {(index: number) => boolean} accepts
 * @returns {number} -1 where there is none
 */
export function findToken(tokens, text, from, accepts) {
  const trimmed = text.trim();
  if (trimmed === "") return -1;
  if (/^\d+$/.test(trimmed) && Number(trimmed) < tokens.length && accepts(Number(trimmed))) return Number(trimmed);
  const part = trimmed.toLowerCase();
  for (let step = 1; step <= tokens.length; step++) {
    const index = (from + step) % tokens.length;
    if (tokens[index]?.toLowerCase().includes(part) && accepts(index)) return index;
  }
  return -1;
}

/**
 * A weight in per cent; one that is too small for two digits is said to be so.
 * @param {number} weight
 */
export function weightText(weight) {
  if (weight > 0 && weight < 0.00005) return "< 0.01 %";
  return `${(weight * 100).toFixed(2)} %`;
}

/**
 * A number with its sign, for sums and changes.
 * @param {number} value
 * @param {number} [digits]
 */
export function signedText(value, digits = 4) {
  const size = Math.abs(value).toFixed(digits);
  return `${Number(size) === 0 ? "±" : value < 0 ? "−" : "+"}${size}`;
}

/**
 * @param {ArrayLike<number>} numbers
 * @param {number} index
 */
export function valueAt(numbers, index) {
  return /** @type {number} */ (numbers[index]);
}
