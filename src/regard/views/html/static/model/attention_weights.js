/** The weights of whole heads: 64-bit sums of the 32-bit queries and keys that the model computed. */

/**
 * Queries, keys and values of one layer: all heads one after another, each (n, dHead).
 * @typedef {object} LayerTensors
 * @property {Float32Array} q
 * @property {Float32Array} k
 * @property {Float32Array} v
 */

/**
 * @typedef {object} HeadShape
 * @property {number} n tokens
 * @property {number} dHead of a query and a key
 * @property {number} scale
 */

/** The weights of a head, and buffers that are used again for the next one. */
export class HeadWeights {
  /** @param {HeadShape} shape */
  constructor({ n, dHead, scale }) {
    this.n = n;
    this.dHead = dHead;
    this.scale = scale;
    /** (n, n), each row sums to 1 */
    this.weights = new Float64Array(n * n);
    /** of each row, in nats */
    this.entropies = new Float64Array(n);
  }

  /**
   * Computes one head, without a mask: each token attends to all.
   * @param {LayerTensors} layer
   * @param {number} head
   */
  compute({ q, k }, head) {
    const { n, dHead } = this;
    const start = head * n * dHead;
    const queries = q.subarray(start, start + n * dHead);
    const keys = k.subarray(start, start + n * dHead);
    for (let query = 0; query < n; query++) this.#row(queries, keys, query);
    return this;
  }

  /**
   * @param {Float32Array} queries of the head
   * @param {Float32Array} keys
   * @param {number} query
   */
  #row(queries, keys, query) {
    const { n, weights } = this;
    const start = query * n;
    const largest = this.#scores(queries, keys, query);
    let sum = 0;
    let moment = 0;
    for (let at = start; at < start + n; at++) {
      const score = Number(weights[at]) - largest;
      const exponential = Math.exp(score);
      weights[at] = exponential;
      sum += exponential;
      moment += exponential * score;
    }
    const share = 1 / sum;
    for (let at = start; at < start + n; at++) weights[at] = Number(weights[at]) * share;
    // -sum of w log w, where log w = score - log sum: no logarithm for each weight.
    this.entropies[query] = Math.max(0, Math.log(sum) - moment * share);
  }

  /**
   * Scaled scores of a row in place of its weights; the largest of them.
   * @param {Float32Array} queries
   * @param {Float32Array} keys
   * @param {number} query
   */
  #scores(queries, keys, query) {
    const { n, dHead, scale, weights } = this;
    const first = query * dHead;
    let largest = -Infinity;
    for (let key = 0, at = 0; key < n; key++) {
      let sum = 0;
      for (let i = first; i < first + dHead; i++, at++) sum += Number(queries[i]) * Number(keys[at]);
      const score = sum * scale;
      weights[query * n + key] = score;
      if (score > largest) largest = score;
    }
    return largest;
  }
}
