/**
 * An encoder of the BERT family in the page: token ids to hidden states, queries, keys, values and one vector.
 * The numbers are those of regard's own encoder with the same 8-bit weights, up to rounding in float32.
 */

import { steps } from "../core/attention.js";
import { gelu } from "./gelu.js";
import { Kernels } from "./kernels.js";
import { addRow, layerNorm, number, softmaxRows } from "./rows.js";
import { readWeights } from "./weights.js";

/** @typedef {import("../core/attention.js").Head} Head */
/** @typedef {import("../live/engine.js").ModelEdit} ModelEdit */
/** @typedef {import("./kernels.js").Panels} Panels */
/** @typedef {import("./kernels.js").Rows} Rows */
/** @typedef {import("./rows.js").Norm} Norm */
/** @typedef {import("./weights.js").EncoderConfig} EncoderConfig */
/** @typedef {import("./weights.js").Matrix} Matrix */

/**
 * A change of a head's output: a `ModelEdit`, or numbers that take the output's place, such as a mean or another text's.
 * @typedef {ModelEdit & {output?: Float32Array | null}} HeadEdit
 *   `output`: (n, d_head), of which an edit of one row takes that row; `off` and `edits` then count for nothing
 */

/**
 * What an attention computes its output from: (heads, n, d_head) each, one head after the other.
 * @typedef {object} RunAttention
 * @property {Float32Array} q
 * @property {Float32Array} k
 * @property {Float32Array} v
 * @property {Float32Array} output weights @ v of each head, edits included
 */

/**
 * A text as the encoder read it.
 * @typedef {object} Run
 * @property {number[]} ids
 * @property {number} n the number of tokens
 * @property {Float32Array[]} hiddenStates num_layers + 1, (n, d_model) each: at the input of the first layer and after each layer
 * @property {RunAttention[]} attentions of each layer
 * @property {Float32Array} vector of the text (d_model), pooled and normalised as the checkpoint says
 * @property {HeadEdit[]} edits that it was computed with
 * @property {number[]} hiddenTokens that it was computed with
 */

/**
 * @typedef {object} ForwardOptions
 * @property {HeadEdit[]} [edits] in order; of two that replace the same row of a head, the later one counts
 * @property {number[]} [hiddenTokens] positions to which, in every layer, only the token there attends itself; faster than the edits that say so
 * @property {Run | null} [after] a run of the same ids without edits and hidden tokens: the run begins at the first edited layer, and has that run's own arrays before it
 * @property {((done: number, total: number) => unknown) | null} [onLayer] awaited after each computed layer; what it throws ends the run. `total` layers are computed
 */

/**
 * @typedef {object} Layer
 * @property {Panels} qkv
 * @property {Panels} outProj
 * @property {Norm} attentionNorm
 * @property {Panels} up
 * @property {Panels} down
 * @property {Norm} feedForwardNorm
 */

export class Encoder {
  /**
   * Use `create`.
   * @param {EncoderConfig} config
   * @param {Kernels} kernels
   * @param {import("./weights.js").EncoderWeights} weights
   */
  constructor(config, kernels, weights) {
    this.config = config;
    this.dHead = config.d_model / config.num_heads;
    this.kernels = kernels;
    this.weights = weights;
    this.embeddingNorm = this.norm("embeddings.norm");
    this.layers = Array.from({ length: config.num_layers }, (_, layer) => this.layer(`blocks.${layer}`));
    /** Behind the weights: what a layer computes. */
    this.free = kernels.reserved;
  }

  /**
   * Throws an Error for weights that do not fit the config or are damaged, and where WebAssembly is missing.
   * @param {EncoderConfig} config
   * @param {Uint8Array} weights of regard/views/html/quantized_model.py, unpacked (`decodeWeights`)
   * @param {BufferSource | WebAssembly.Module} wasm kernels.wasm
   * @returns {Promise<Encoder>}
   */
  static async create(config, weights, wasm) {
    const read = readWeights(config, weights);
    return new Encoder(config, await Kernels.create(wasm), read);
  }

  /**
   * Read a text. Several calls may be under way at the same time.
   *
   * Throws a RangeError for ids or edits that the model does not have, too many ids, and an `after` of another text.
   * @param {ArrayLike<number>} ids
   * @param {ForwardOptions} [options]
   * @returns {Promise<Run>}
   */
  async forward(ids, { edits = [], hiddenTokens = [], after = null, onLayer = null } = {}) {
    this.checkIds(ids);
    for (const edit of edits) this.checkEdit(edit, ids.length);
    for (const token of hiddenTokens) checkIndex("hidden token", token, ids.length);
    if (after) checkAfter(after, ids);
    const { num_layers } = this.config;
    const first = after && !hiddenTokens.length ? edits.reduce((least, { attention }) => Math.min(least, attention), num_layers) : 0;
    const hiddenStates = after ? after.hiddenStates.slice(0, first + 1) : [this.embed(ids)];
    const attentions = after ? after.attentions.slice(0, first) : [];
    for (let layer = first; layer < num_layers; layer++) {
      const x = /** @type {Float32Array} */ (hiddenStates[layer]);
      const { attention, output } = this.runLayer(layer, x, edits.filter((edit) => edit.attention === layer), hiddenTokens);
      attentions.push(attention);
      hiddenStates.push(output);
      await onLayer?.(layer + 1 - first, num_layers - first);
    }
    const vector = this.pool(/** @type {Float32Array} */ (hiddenStates[num_layers]));
    return { ids: Array.from(ids), n: ids.length, hiddenStates, attentions, vector, edits, hiddenTokens };
  }

  /**
   * A head of a run, as `steps` and `tile` take it.
   * @param {Pick<RunAttention, "q" | "k" | "v">} attention
   * @param {number} head
   * @returns {Head}
   */
  head({ q, k, v }, head) {
    const { dHead } = this;
    const n = q.length / this.config.d_model;
    const [from, to] = [head * n * dHead, (head + 1) * n * dHead];
    return {
      q: q.subarray(from, to),
      k: k.subarray(from, to),
      v: v.subarray(from, to),
      dKey: dHead,
      dValue: dHead,
      queries: n,
      keys: n,
      rows: null,
      lse: null,
      scale: this.config.attention_scale,
      softcap: null,
      sink: null,
      bias: null,
      allowed: null,
    };
  }

  /**
   * @private
   * @param {string} block
   * @returns {Layer}
   */
  layer(block) {
    return {
      qkv: this.linear(`${block}.attention.qkv`),
      outProj: this.linear(`${block}.attention.out_proj`),
      attentionNorm: this.norm(`${block}.attention_norm`),
      up: this.linear(`${block}.feed_forward.up`),
      down: this.linear(`${block}.feed_forward.down`),
      feedForwardNorm: this.norm(`${block}.feed_forward_norm`),
    };
  }

  /**
   * @private
   * @param {string} name
   * @returns {Panels}
   */
  linear(name) {
    const { values, scales, rows, columns } = this.matrix(`${name}.weight`);
    const panels = this.kernels.reservePanels(columns, rows);
    this.kernels.fill(panels, { values, columnStride: columns, inputStride: 1, scales, bias: this.vector(`${name}.bias`) });
    return panels;
  }

  /**
   * @private
   * @param {string} name
   * @returns {Norm}
   */
  norm(name) {
    return { weight: this.vector(`${name}.weight`), bias: this.vector(`${name}.bias`) };
  }

  /**
   * @private
   * @param {string} name
   */
  matrix(name) {
    return /** @type {Matrix} */ (this.weights.matrices.get(name));
  }

  /**
   * @private
   * @param {string} name
   */
  vector(name) {
    return /** @type {Float32Array} */ (this.weights.vectors.get(name));
  }

  /**
   * The input of the first layer.
   * @private
   * @param {ArrayLike<number>} ids
   */
  embed(ids) {
    const { d_model, first_position, num_token_types } = this.config;
    const x = new Float32Array(ids.length * d_model);
    for (let i = 0; i < ids.length; i++) {
      const row = x.subarray(i * d_model, (i + 1) * d_model);
      addRow(row, this.matrix("embeddings.token.weight"), Number(ids[i]));
      addRow(row, this.matrix("embeddings.position.weight"), first_position + i);
      if (num_token_types) addRow(row, this.matrix("embeddings.token_type.weight"), 0);
    }
    layerNorm(x, this.embeddingNorm, this.config.norm_eps);
    return x;
  }

  /**
   * @private
   * @param {number} layer
   * @param {Float32Array} x
   * @param {HeadEdit[]} edits of this layer
   * @param {number[]} hiddenTokens
   * @returns {{attention: RunAttention, output: Float32Array}}
   */
  runLayer(layer, x, edits, hiddenTokens) {
    const { kernels, config } = this;
    const { d_model, d_ff, norm_eps } = config;
    const n = x.length / d_model;
    const { qkv, outProj, attentionNorm, up, down, feedForwardNorm } = /** @type {Layer} */ (this.layers[layer]);
    kernels.reserved = this.free; // of the layer before, nothing is needed in the memory any more
    const input = kernels.reserveRows(n, d_model);
    const update = kernels.reserveRows(n, d_model);
    const hidden = kernels.reserveRows(n, Math.max(d_ff, 3 * d_model));

    this.write(input, x, d_model);
    kernels.matmul(input, qkv, hidden, n);
    const attention = this.attend(hidden, n, hiddenTokens);
    for (const edit of edits) this.edit(attention, edit);
    this.writeJoined(input, attention.output, n);
    kernels.matmul(input, outProj, update, n);
    const middle = x.slice();
    this.addAndNorm(middle, update, attentionNorm, norm_eps);

    this.write(input, middle, d_model);
    kernels.matmul(input, up, hidden, n);
    gelu(kernels.floats, hidden.at, hidden.at + n * hidden.stride);
    kernels.matmul(hidden, down, update, n);
    this.addAndNorm(middle, update, feedForwardNorm, norm_eps);
    return { attention, output: middle };
  }

  /**
   * Queries, keys, values and outputs of all heads.
   * @private
   * @param {Rows} qkv
   * @param {number} n
   * @param {number[]} hiddenTokens
   * @returns {RunAttention}
   */
  attend(qkv, n, hiddenTokens) {
    const { kernels, dHead } = this;
    const { d_model, num_heads, attention_scale } = this.config;
    const q = this.readHeads(qkv, 0, n);
    const k = this.readHeads(qkv, d_model, n);
    const v = this.readHeads(qkv, 2 * d_model, n);
    const output = new Float32Array(n * d_model);
    const scores = kernels.reserveRows(n, n);
    const keys = kernels.reservePanels(dHead, n);
    const values = kernels.reservePanels(n, dHead);
    const result = kernels.reserveRows(n, dHead);
    for (let head = 0; head < num_heads; head++) {
      const from = head * n * dHead;
      kernels.fill(keys, { values: k, from, columnStride: dHead, inputStride: 1 });
      kernels.matmul({ at: qkv.at + head * dHead, stride: qkv.stride }, keys, scores, n);
      softmaxRows(kernels.floats, scores, n, attention_scale, hiddenTokens);
      kernels.fill(values, { values: v, from, columnStride: 1, inputStride: dHead });
      kernels.matmul(scores, values, result, n);
      for (let i = 0; i < n; i++) {
        const at = result.at + i * result.stride;
        output.set(kernels.floats.subarray(at, at + dHead), from + i * dHead);
      }
    }
    return { q, k, v, output };
  }

  /**
   * Replace rows of a head's output.
   * @private
   * @param {RunAttention} attention
   * @param {HeadEdit} edit
   */
  edit(attention, { head, query, off, edits, output = null }) {
    const { dHead } = this;
    const facts = this.head(attention, head);
    const n = facts.queries;
    for (let row = query ?? 0; row < (query === null ? n : query + 1); row++) {
      const to = attention.output.subarray((head * n + row) * dHead, (head * n + row + 1) * dHead);
      if (output) to.set(output.subarray(row * dHead, (row + 1) * dHead));
      else if (off) to.fill(0);
      else to.set(/** @type {Float64Array} */ (steps(facts, row, edits).output));
    }
  }

  /**
   * A column range of rows in the memory as (heads, n, d_head).
   * @private
   * @param {Rows} rows
   * @param {number} column
   * @param {number} n
   */
  readHeads({ at, stride }, column, n) {
    const { kernels, dHead } = this;
    const out = new Float32Array(n * this.config.d_model);
    for (let head = 0, to = 0; head < this.config.num_heads; head++) {
      for (let i = 0; i < n; i++, to += dHead) {
        const from = at + i * stride + column + head * dHead;
        out.set(kernels.floats.subarray(from, from + dHead), to);
      }
    }
    return out;
  }

  /**
   * The heads' outputs side by side.
   * @private
   * @param {Rows} rows
   * @param {Float32Array} output (heads, n, d_head)
   * @param {number} n
   */
  writeJoined({ at, stride }, output, n) {
    const { kernels, dHead } = this;
    for (let head = 0, from = 0; head < this.config.num_heads; head++) {
      for (let i = 0; i < n; i++, from += dHead) kernels.floats.set(output.subarray(from, from + dHead), at + i * stride + head * dHead);
    }
  }

  /**
   * @private
   * @param {Rows} rows
   * @param {Float32Array} x
   * @param {number} width
   */
  write({ at, stride }, x, width) {
    for (let from = 0, to = at; from < x.length; from += width, to += stride) this.kernels.floats.set(x.subarray(from, from + width), to);
  }

  /**
   * x = norm(x + update)
   * @private
   * @param {Float32Array} x
   * @param {Rows} update
   * @param {Norm} norm
   * @param {number} eps
   */
  addAndNorm(x, { at, stride }, norm, eps) {
    const { d_model } = this.config;
    const { floats } = this.kernels;
    const n = x.length / d_model;
    for (let row = 0; row < n; row++) {
      for (let i = 0; i < d_model; i++) x[row * d_model + i] = number(x, row * d_model + i) + number(floats, at + row * stride + i);
    }
    layerNorm(x, norm, eps);
  }

  /**
   * One vector of all tokens'.
   * @private
   * @param {Float32Array} x
   */
  pool(x) {
    const { d_model, pooling } = this.config;
    const n = pooling.mode === "cls" ? 1 : x.length / d_model;
    const vector = Float32Array.from({ length: d_model }, (_, i) => {
      let sum = 0;
      for (let row = 0; row < n; row++) sum += number(x, row * d_model + i);
      return sum / n;
    });
    if (!pooling.normalize) return vector;
    const length = Math.max(Math.hypot(...vector), 1e-12);
    return vector.map((each) => each / length);
  }

  /**
   * @private
   * @param {ArrayLike<number>} ids
   */
  checkIds(ids) {
    const { vocab_size, max_positions } = this.config;
    if (!ids.length || ids.length > max_positions) throw new RangeError(`the text has ${ids.length} tokens, and the model reads 1 to ${max_positions}`);
    for (let i = 0; i < ids.length; i++) {
      const id = Number(ids[i]);
      if (!Number.isInteger(id) || id < 0 || id >= vocab_size) throw new RangeError(`token ${i} has the id ${id}, and the model has 0 to ${vocab_size - 1}`);
    }
  }

  /**
   * @private
   * @param {HeadEdit} edit
   * @param {number} n
   */
  checkEdit({ attention, head, query, output }, n) {
    const { num_layers, num_heads } = this.config;
    checkIndex("attention", attention, num_layers);
    checkIndex("head", head, num_heads);
    checkIndex("query", query ?? 0, n);
    if (output && output.length !== n * this.dHead) throw new RangeError(`an edit's output has ${output.length} numbers, and a head's has ${n * this.dHead}`);
  }
}

/**
 * @param {string} name
 * @param {number} value
 * @param {number} count
 */
function checkIndex(name, value, count) {
  if (!Number.isInteger(value) || value < 0 || value >= count) throw new RangeError(`${name} ${value} is to be edited, and there are 0 to ${count - 1}`);
}

/**
 * @param {Run} after
 * @param {ArrayLike<number>} ids
 */
function checkAfter(after, ids) {
  if (after.edits.length || after.hiddenTokens.length) throw new RangeError("a run can only begin again after a run without edits");
  if (after.n !== ids.length || after.ids.some((id, i) => id !== ids[i])) throw new RangeError("a run can only begin again after a run of the same ids");
}
