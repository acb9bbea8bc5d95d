/**
 * Attention by its definition, one row at a time: softmax(q . k * scale) @ v, and what grew from it.
 * The same steps in the same order as regard.steps, whose numbers the tests hold these against.
 */

/**
 * What one head computes its rows from.
 * @typedef {object} Head
 * @property {Float32Array} q (rows, width), of the queries in the page
 * @property {Float32Array} k (keys, width)
 * @property {Float32Array | null} v (keys, valueWidth)
 * @property {number} dKey of a query and a key
 * @property {number} dValue
 * @property {number} queries how many the model had
 * @property {number} keys
 * @property {Float32Array | null} rows the queries in the page, in order; null: all
 * @property {Float32Array | null} lse of each row: log-sum-exp of its scores, with the sink
 * @property {number} scale
 * @property {number | null} softcap
 * @property {number | null} sink a score of the head itself, which takes part in the softmax and has no value
 * @property {((query: number, key: number) => number) | null} bias
 * @property {((query: number, key: number) => boolean) | null} allowed whether a query may attend to a key; null: it may
 */

/**
 * Changes to one row, each by itself: what if?
 * @typedef {object} Edits
 * @property {Record<number, number>} [scores] q . k of a key, in place of the computed one
 * @property {number} [scale]
 * @property {number} [temperature] what the scores are divided by before the softmax; 1 changes nothing
 * @property {Record<number, boolean>} [mask] whether the query may attend to a key, in place of the mask
 * @property {number[]} [removedKeys] keys that are removed, as if the text had no such token
 */

/** Edits are numbers up to this size, and a temperature is at least one by it: larger ones overflow, and say nothing. */
export const MAX_EDIT = 1e6;

/**
 * Every step of a row; steps that this head does not have repeat the one before.
 * @typedef {object} Steps
 * @property {Float64Array} scores q . k for each key
 * @property {Float64Array} scaled
 * @property {Float64Array} capped
 * @property {Float64Array} biased
 * @property {Float64Array} masked divided by the temperature; -Infinity where the query may not attend
 * @property {Float64Array} weights
 * @property {Float64Array | null} output weights @ v
 */

/**
 * The index of a query's row in the page; -1 where there is none.
 * @param {Head} head
 * @param {number} query
 */
export function rowIndex(head, query) {
  if (!head.rows) return query;
  let low = 0;
  let high = head.rows.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const rowQuery = item(head.rows, middle);
    if (rowQuery === query) return middle;
    if (rowQuery < query) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

/**
 * One row of attention, step by step.
 * @param {Head} head
 * @param {number} query
 * @param {Edits} [edits]
 * @returns {Steps}
 */
export function steps(head, query, edits = {}) {
  const n = head.keys;
  const scores = new Float64Array(n);
  const row = rowIndex(head, query);
  if (row < 0) throw new RangeError(`the row of query ${query} is not in this page`);
  for (let key = 0; key < n; key++) scores[key] = dot(head, row, key);
  for (const [key, score] of Object.entries(edits.scores ?? {})) scores[Number(key)] = score;

  const scale = edits.scale ?? head.scale;
  const temperature = edits.temperature ?? 1;
  const scaled = scores.map((score) => score * scale);
  const { softcap, bias } = head;
  const capped = softcap === null ? scaled : scaled.map((score) => softcap * Math.tanh(score / softcap));
  const biased = bias === null ? capped : capped.map((score, key) => score + bias(query, key));
  const masked = biased.map((score, key) => (isAllowed(head, query, key, edits) ? score / temperature : -Infinity));
  const weights = softmax(masked, head.sink === null ? null : head.sink / temperature);
  return { scores, scaled, capped, biased, masked, weights, output: head.v ? weightedSum(head, weights) : null };
}

/**
 * Weights of a part of the map, row by row: exp(score - lse of the row).
 * @param {Head} head
 * @param {number} top first query
 * @param {number} bottom the query behind the last
 * @param {number} left first key
 * @param {number} right the key behind the last
 * @returns {Float32Array} NaN where the page has no row
 */
export function tile(head, top, bottom, left, right) {
  const columns = right - left;
  const out = new Float32Array((bottom - top) * columns);
  for (let query = top; query < bottom; query++) {
    const start = (query - top) * columns;
    const row = rowIndex(head, query);
    if (row < 0) out.fill(NaN, start, start + columns);
    else if (head.lse) {
      const lse = item(head.lse, row);
      for (let key = left; key < right; key++) {
        const isFree = Number.isFinite(lse) && (head.allowed === null || head.allowed(query, key));
        out[start + key - left] = isFree ? Math.exp(softmaxScore(head, query, row, key) - lse) : 0;
      }
    } else out.set(steps(head, query).weights.subarray(left, right), start);
  }
  return out;
}

/**
 * The products that a score is the sum of, dimension by dimension.
 * @param {Head} head
 * @param {number} query
 * @param {number} key
 * @returns {{q: number, k: number, product: number}[]}
 */
export function products(head, query, key) {
  const row = rowIndex(head, query);
  return Array.from({ length: head.dKey }, (_, i) => {
    const q = item(head.q, row * head.dKey + i);
    const k = item(head.k, key * head.dKey + i);
    return { q, k, product: q * k };
  });
}

/**
 * Weights that sum to 1, or with a sink to less; all 0 where there is nothing to attend to.
 * @param {Float64Array} masked
 * @param {number | null} sink
 */
export function softmax(masked, sink = null) {
  let largest = sink ?? -Infinity;
  for (const score of masked) if (score > largest) largest = score;
  if (largest === -Infinity) return new Float64Array(masked.length);
  const exponentials = masked.map((score) => Math.exp(score - largest));
  const sum = exponentials.reduce((total, each) => total + each, sink === null ? 0 : Math.exp(sink - largest));
  return exponentials.map((each) => each / sum);
}

/**
 * -sum of weight * log(weight), in nats.
 * @param {ArrayLike<number>} weights
 */
export function entropy(weights) {
  let sum = 0;
  for (let i = 0; i < weights.length; i++) {
    const weight = /** @type {number} */ (weights[i]);
    if (weight > 0) sum -= weight * Math.log(weight);
  }
  return sum;
}

/**
 * Whether a query may attend to a key, edits considered.
 * @param {Head} head
 * @param {number} query
 * @param {number} key
 * @param {Edits} edits
 */
export function isAllowed(head, query, key, edits = {}) {
  if (edits.removedKeys?.includes(key)) return false;
  return edits.mask?.[key] ?? (head.allowed === null || head.allowed(query, key));
}

/**
 * The score that goes into the softmax.
 * @param {Head} head
 * @param {number} query
 * @param {number} row
 * @param {number} key
 */
function softmaxScore(head, query, row, key) {
  let score = dot(head, row, key) * head.scale;
  if (head.softcap !== null) score = head.softcap * Math.tanh(score / head.softcap);
  return head.bias === null ? score : score + head.bias(query, key);
}

/**
 * @param {Head} head
 * @param {number} row
 * @param {number} key
 */
function dot({ q, k, dKey }, row, key) {
  let sum = 0;
  for (let i = 0, a = row * dKey, b = key * dKey; i < dKey; i++, a++, b++) sum += item(q, a) * item(k, b);
  return sum;
}

/**
 * weights @ v
 * @param {Head} head
 * @param {Float64Array} weights
 */
function weightedSum({ v, dValue }, weights) {
  const output = new Float64Array(dValue);
  weights.forEach((weight, key) => {
    if (weight > 0 && v) for (let i = 0; i < dValue; i++) output[i] = item(output, i) + weight * item(v, key * dValue + i);
  });
  return output;
}

/**
 * @param {ArrayLike<number>} array
 * @param {number} i
 */
function item(array, i) {
  return /** @type {number} */ (array[i]);
}
