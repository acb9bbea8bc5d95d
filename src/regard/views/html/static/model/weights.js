/**
 * The weights of the page's model: 8-bit integers with a scale for each row of a matrix, and vectors in float32.
 * regard/views/html/quantized_model.py writes them.
 */

import { decodeSevenBits, gunzip } from "../core/codec.js";

/**
 * The sizes of an encoder of the BERT family: learned positions, a norm after each sublayer, GELU.
 * @typedef {object} EncoderConfig
 * @property {number} vocab_size
 * @property {number} d_model
 * @property {number} num_layers
 * @property {number} num_heads
 * @property {number} d_ff
 * @property {number} max_positions
 * @property {number} first_position the row of the learned positions for the first token
 * @property {number} num_token_types 0: none
 * @property {number} norm_eps
 * @property {number} attention_scale what the scores are multiplied by
 * @property {{mode: "mean" | "cls", normalize: boolean}} pooling
 */

/**
 * A matrix: the number in a row and column is `values[row * columns + column] * scales[row]`.
 * @typedef {object} Matrix
 * @property {Int8Array} values
 * @property {Float32Array} scales
 * @property {number} rows
 * @property {number} columns
 */

/**
 * A parameter's name and shape; a vector has no rows.
 * @typedef {object} Parameter
 * @property {string} name
 * @property {number | null} rows
 * @property {number} columns
 */

/**
 * @typedef {object} EncoderWeights
 * @property {Map<string, Matrix>} matrices
 * @property {Map<string, Float32Array>} vectors
 */

/** The sizes, each with the least that a model can have. */
const SIZES = /** @type {const} */ ([
  ["vocab_size", 1],
  ["d_model", 1],
  ["num_layers", 1],
  ["num_heads", 1],
  ["d_ff", 1],
  ["max_positions", 1],
  ["first_position", 0],
  ["num_token_types", 0],
]);

/** Larger sizes are damage: no page could hold such a model. */
const MAX_SIZE = 2 ** 24;

/** Each layer has twelve parameters to list. */
const MAX_LAYERS = 1000;

/**
 * The bytes that a text of the page holds, unpacked.
 * @param {string} text seven bits a character
 * @param {number} length of what gzip wrote
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function decodeWeights(text, length) {
  const packed = decodeSevenBits(text);
  if (!(packed.length >= length)) throw new Error(`the model's weights are cut off: ${packed.length} bytes of ${length}; save the page again`);
  try {
    return await gunzip(packed, length);
  } catch (error) {
    throw new Error("the model's weights are damaged; save the page again", { cause: error });
  }
}

/**
 * All parameters in the order in which the bytes have them.
 * @param {EncoderConfig} config
 * @returns {Parameter[]}
 */
export function parameters({ vocab_size, d_model, num_layers, d_ff, max_positions, first_position, num_token_types }) {
  /** @type {Parameter[]} */
  const all = [];
  /** @param {string} name @param {number | null} rows @param {number} columns */
  const add = (name, rows, columns) => all.push({ name, rows, columns });
  /** @param {string} name @param {number} inputs @param {number} outputs */
  const linear = (name, inputs, outputs) => {
    add(`${name}.weight`, outputs, inputs);
    add(`${name}.bias`, null, outputs);
  };
  /** @param {string} name */
  const norm = (name) => {
    add(`${name}.weight`, null, d_model);
    add(`${name}.bias`, null, d_model);
  };
  add("embeddings.token.weight", vocab_size, d_model);
  add("embeddings.position.weight", first_position + max_positions, d_model);
  if (num_token_types) add("embeddings.token_type.weight", num_token_types, d_model);
  norm("embeddings.norm");
  for (let layer = 0; layer < num_layers; layer++) {
    const block = `blocks.${layer}`;
    linear(`${block}.attention.qkv`, d_model, 3 * d_model);
    linear(`${block}.attention.out_proj`, d_model, d_model);
    norm(`${block}.attention_norm`);
    linear(`${block}.feed_forward.up`, d_model, d_ff);
    linear(`${block}.feed_forward.down`, d_ff, d_model);
    norm(`${block}.feed_forward_norm`);
  }
  return all;
}

/**
 * The parameters in their bytes: all vectors and scales, in float32 and in order, then all integers.
 *
 * Throws an Error for sizes that no model has, another number of bytes than these sizes take, and numbers that are not finite.
 * @param {EncoderConfig} config
 * @param {Uint8Array} bytes
 * @returns {EncoderWeights}
 */
export function readWeights(config, bytes) {
  checkConfig(config);
  const shapes = parameters(config);
  const numFloats = shapes.reduce((sum, { rows, columns }) => sum + (rows ?? columns), 0);
  const numIntegers = shapes.reduce((sum, { rows, columns }) => sum + (rows ?? 0) * columns, 0);
  const expected = 4 * numFloats + numIntegers;
  if (bytes.length !== expected) throw new Error(`the model's weights are ${bytes.length} bytes, and a model of these sizes has ${expected}; save the page again`);
  // A copy begins at a multiple of 4 bytes.
  const floats = new Float32Array(bytes.slice(0, 4 * numFloats).buffer);
  const integers = new Int8Array(bytes.buffer, bytes.byteOffset + 4 * numFloats, numIntegers);
  /** @type {EncoderWeights} */
  const weights = { matrices: new Map(), vectors: new Map() };
  let float = 0;
  let integer = 0;
  for (const { name, rows, columns } of shapes) {
    const vector = floats.subarray(float, (float += rows ?? columns));
    if (!vector.every(Number.isFinite)) throw new Error(`the model's weights are damaged: ${name} has numbers that are not finite; save the page again`);
    if (rows === null) weights.vectors.set(name, vector);
    else weights.matrices.set(name, { values: integers.subarray(integer, (integer += rows * columns)), scales: vector, rows, columns });
  }
  return weights;
}

/** @param {EncoderConfig} config */
function checkConfig(config) {
  for (const [name, least] of SIZES) {
    const size = config[name];
    const most = name === "num_layers" ? MAX_LAYERS : MAX_SIZE;
    if (!Number.isInteger(size) || size < least || size > most) throw new Error(`${name} of the model is ${size}, and not a whole number from ${least} to ${most}`);
  }
  const { d_model, num_heads, norm_eps, attention_scale, pooling } = config;
  if (d_model % num_heads) throw new Error(`d_model of the model is ${d_model}, which does not divide into num_heads = ${num_heads}`);
  if (!Number.isFinite(attention_scale)) throw new Error(`attention_scale of the model is ${attention_scale}, and not a finite number`);
  if (!(norm_eps >= 0 && norm_eps <= 1)) throw new Error(`norm_eps of the model is ${norm_eps}, and not a number from 0 to 1`);
  if (pooling?.mode !== "mean" && pooling?.mode !== "cls") throw new Error(`pooling of the model is ${pooling?.mode}, and neither "mean" nor "cls"`);
}
