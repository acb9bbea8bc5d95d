/** What the facts say of a head beside its type: distance, pairs, the pooled map, and how informative it is. */

/** @typedef {import("./attention_weights.js").HeadWeights} HeadWeights */
/** @typedef {{query: number, key: number, weight: number}} Pair */

/** The most pairs of tokens that are listed for a head, the strongest first. */
const MAX_PAIRS = 12;

/** A pair is listed if its weight is among so many largest of its row. */
const ROW_TOP = 8;

/** The most rows and columns of the pooled map. */
const THUMBNAIL_CELLS = 32;

/** Of each head as many rows are sampled as have the largest number of weights, within these bounds. */
const MIN_ROWS = 16;
const MAX_ROWS = 64;
const MAX_SAMPLED_WEIGHTS = 2 ** 14;

/**
 * The mean distance from a query back to its keys.
 * @param {HeadWeights} head
 */
export function meanDistance({ n, weights }) {
  let sum = 0;
  for (let query = 0, at = 0; query < n; query++) for (let key = 0; key < n; key++, at++) sum += Number(weights[at]) * (query - key);
  return sum / n;
}

/**
 * The largest difference between weights @ v and the head's output that the model computed, on some rows.
 * @param {HeadWeights} head
 * @param {import("./encoder.js").RunAttention} layer
 * @param {number} place of the head
 */
export function outputDifference({ n, dHead, weights }, { v, output }, place) {
  const start = place * n * dHead;
  let largest = 0;
  for (let row = 0; row < Math.min(n, MIN_ROWS); row++) {
    const query = Math.floor((row * n) / Math.min(n, MIN_ROWS));
    for (let i = 0; i < dHead; i++) {
      let sum = 0;
      for (let key = 0; key < n; key++) sum += Number(weights[query * n + key]) * Number(v[start + key * dHead + i]);
      largest = Math.max(largest, Math.abs(sum - Number(output[start + query * dHead + i])));
    }
  }
  return largest;
}

/**
 * The largest weights, without the first key, delimiters, and pairs of a token with itself.
 * @param {HeadWeights} head
 * @param {Uint8Array} delimiters
 * @returns {Pair[]}
 */
export function strongestPairs({ n, weights }, delimiters) {
  /** @type {Pair[]} */
  const pairs = [];
  let least = 0;
  for (let query = 0; query < n; query++) {
    for (let key = 1, at = query * n + 1; key < n; key++, at++) {
      const weight = Number(weights[at]);
      if (weight <= least || key === query || delimiters[key] === 1 || !isAmongLargest(weights, query * n, n, weight)) continue;
      const place = pairs.findIndex((pair) => pair.weight < weight);
      pairs.splice(place < 0 ? pairs.length : place, 0, { query, key, weight });
      if (pairs.length > MAX_PAIRS) pairs.pop();
      if (pairs.length === MAX_PAIRS) least = /** @type {Pair} */ (pairs.at(-1)).weight;
    }
  }
  return pairs;
}

/**
 * Whether fewer than `ROW_TOP` weights of a row are larger.
 * @param {Float64Array} weights
 * @param {number} start of the row
 * @param {number} n
 * @param {number} weight
 */
function isAmongLargest(weights, start, n, weight) {
  let larger = 0;
  for (let at = start; at < start + n; at++) if (Number(weights[at]) > weight) larger++;
  return larger < ROW_TOP;
}

/** @param {number} n tokens */
export function pooledCells(n) {
  return Math.min(THUMBNAIL_CELLS, n);
}

/**
 * The pooled map: the square root of each cell relative to the largest, in steps of 1/255.
 *
 * A cell is the sum of the weights in it, divided by the number of its queries.
 * @param {HeadWeights} head
 * @param {Uint8Array} out (cells, cells)
 * @returns {number} the largest cell
 */
export function poolMap({ n, weights }, out) {
  const cells = pooledCells(n);
  const cellOf = new Uint8Array(n);
  const rows = new Float64Array(cells);
  for (let cell = 0; cell < cells; cell++) {
    const [first, end] = [Math.floor((cell * n) / cells), Math.floor(((cell + 1) * n) / cells)];
    cellOf.fill(cell, first, end);
    rows[cell] = end - first;
  }
  const sums = new Float64Array(cells * cells);
  for (let query = 0, at = 0; query < n; query++) {
    const row = Number(cellOf[query]);
    for (let key = 0; key < n; key++, at++) {
      const cell = row * cells + Number(cellOf[key]);
      sums[cell] = Number(sums[cell]) + Number(weights[at]) / Number(rows[row]);
    }
  }
  const largest = sums.reduce((most, each) => Math.max(most, each), 1e-12);
  sums.forEach((sum, cell) => (out[cell] = Math.round(255 * Math.sqrt(sum / largest))));
  return largest;
}

/**
 * How informative a head is: the largest weight of a row, on average, by three measures of which the first that is
 * above 0 for any head decides.
 *
 * From word to word, two places away at least: neither the first token nor delimiters; on any token but the query's own;
 * on any token. Of a long text some rows at even distances are compared.
 * @param {HeadWeights} head
 * @param {Uint8Array} delimiters
 * @returns {[number, number, number]}
 */
export function informativeness({ n, weights }, delimiters) {
  const isWord = (/** @type {number} */ at) => at > 0 && delimiters[at] !== 1;
  const step = Math.ceil(n / Math.min(MAX_ROWS, Math.max(MIN_ROWS, Math.floor(MAX_SAMPLED_WEIGHTS / n))));
  const sums = [0, 0, 0];
  let words = 0;
  let rows = 0;
  for (let query = 0; query < n; query += step, rows++) {
    const largest = [0, 0, 0];
    for (let key = 0, at = query * n; key < n; key++, at++) {
      const weight = Number(weights[at]);
      const distance = Math.abs(key - query);
      if (distance >= 2 && isWord(key)) largest[0] = Math.max(Number(largest[0]), weight);
      if (distance >= 1) largest[1] = Math.max(Number(largest[1]), weight);
      largest[2] = Math.max(Number(largest[2]), weight);
    }
    if (isWord(query)) words += 1;
    else largest[0] = 0;
    largest.forEach((each, i) => (sums[i] = Number(sums[i]) + each));
  }
  const [toWords = 0, toOthers = 0, toAny = 0] = sums;
  return [words === 0 ? 0 : toWords / words, toOthers / rows, toAny / rows];
}
