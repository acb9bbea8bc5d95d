/** What the encoder does besides matrix products: rows of embeddings, softmax and LayerNorm, in place. */

/** @typedef {import("./kernels.js").Rows} Rows */
/** @typedef {import("./weights.js").Matrix} Matrix */

/**
 * The parameters of a LayerNorm.
 * @typedef {object} Norm
 * @property {Float32Array} weight
 * @property {Float32Array} bias
 */

/**
 * Add a row of a matrix.
 * @param {Float32Array} to
 * @param {Matrix} matrix
 * @param {number} row
 */
export function addRow(to, { values, scales, columns }, row) {
  const scale = number(scales, row);
  // float32 after each operation, as the model of regard computes.
  for (let i = 0; i < columns; i++) to[i] = number(to, i) + Math.fround(number(values, row * columns + i) * scale);
}

/**
 * softmax(scale * row) of n rows of n scores. Only a token itself attends to a hidden one.
 * @param {Float32Array} floats
 * @param {Rows} rows
 * @param {number} n
 * @param {number} scale
 * @param {number[]} hidden keys
 */
export function softmaxRows(floats, { at, stride }, n, scale, hidden) {
  for (let row = 0; row < n; row++) {
    const from = at + row * stride;
    for (let i = from; i < from + n; i++) floats[i] = number(floats, i) * scale;
    for (const key of hidden) if (key !== row) floats[from + key] = -Infinity;
    let largest = -Infinity;
    for (let i = from; i < from + n; i++) largest = Math.max(largest, number(floats, i));
    let sum = 0;
    for (let i = from; i < from + n; i++) sum += floats[i] = Math.exp(number(floats, i) - largest);
    for (let i = from; i < from + n; i++) floats[i] = number(floats, i) / sum;
  }
}

/**
 * Rows in place: (x - mean) / sqrt(variance + eps) * weight + bias.
 * @param {Float32Array} x
 * @param {Norm} norm
 * @param {number} eps
 */
export function layerNorm(x, { weight, bias }, eps) {
  const width = weight.length;
  for (let from = 0; from < x.length; from += width) {
    let sum = 0;
    for (let i = 0; i < width; i++) sum += number(x, from + i);
    const mean = sum / width;
    let squares = 0;
    for (let i = 0; i < width; i++) squares += (number(x, from + i) - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / width + eps);
    for (let i = 0; i < width; i++) x[from + i] = (number(x, from + i) - mean) * factor * number(weight, i) + number(bias, i);
  }
}

/**
 * @param {ArrayLike<number>} array
 * @param {number} i
 */
export function number(array, i) {
  return /** @type {number} */ (array[i]);
}
