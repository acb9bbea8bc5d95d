/** The weights of whole heads in a run: 64-bit sums of the 32-bit queries and keys that the model computed. */

/** @typedef {import("./encoder.js").RunAttention} RunAttention */

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
   * @param {RunAttention} layer
   * @param {number} head
   */
  compute(layer, head) {
    const [queries, keys] = this.#head(layer, head);
    for (let query = 0; query < this.n; query++) this.#row(queries, keys, query);
    return this;
  }

  /**
   * Computes one row of a head.
   * @param {RunAttention} layer
   * @param {number} head
   * @param {number} query
   */
  computeRow(layer, head, query) {
    this.#row(...this.#head(layer, head), query);
    return this.weights.subarray(query * this.n, (query + 1) * this.n);
  }

  /**
   * The queries and keys of a head.
   * @param {RunAttention} layer
   * @param {number} head
   * @returns {[Float32Array, Float32Array]}
   */
  #head({ q, k }, head) {
    const size = this.n * this.dHead;
    return [q.subarray(head * size, (head + 1) * size), k.subarray(head * size, (head + 1) * size)];
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
