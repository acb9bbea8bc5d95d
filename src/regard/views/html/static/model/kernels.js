/**
 * Matrix products in WebAssembly (kernels.wat): the memory, and the layout of weights in it.
 * Places in the memory are counted in float32 numbers.
 */

/** Columns that the kernel computes together. */
const PANEL_COLUMNS = 8;

/** Rows that it computes together. */
const TILE_ROWS = 4;

const PAGE_FLOATS = 16384;

/** Places are multiples of this: 16 bytes, a register. */
const ALIGNMENT = 4;

/**
 * The weights of a linear layer in the memory.
 * @typedef {object} Panels
 * @property {number} at
 * @property {number} inputs
 * @property {number} columns
 */

/**
 * Rows of numbers in the memory.
 * @typedef {object} Rows
 * @property {number} at
 * @property {number} stride from one row to the next
 */

/**
 * Weights on their way into panels. The weight of a column and an input is at `from + column * columnStride + input * inputStride`.
 * @typedef {object} Weights
 * @property {Int8Array | Float32Array} values
 * @property {number} [from]
 * @property {number} columnStride
 * @property {number} inputStride
 * @property {Float32Array} [scales] of each column
 * @property {Float32Array} [bias] of each column
 */

/**
 * @typedef {(x: number, xStride: number, panels: number, out: number, outStride: number, rows: number, inner: number,
 *   columns: number) => void} MatMul
 */

export class Kernels {
  /**
   * @param {WebAssembly.Memory} memory
   * @param {MatMul} multiply
   */
  constructor(memory, multiply) {
    this.memory = memory;
    this.multiply = multiply;
    /** How many numbers are reserved. */
    this.reserved = 0;
    this.floats = new Float32Array(memory.buffer);
  }

  /**
   * @param {BufferSource | WebAssembly.Module} wasm kernels.wasm
   * @returns {Promise<Kernels>}
   */
  static async create(wasm) {
    try {
      const memory = new WebAssembly.Memory({ initial: 1 });
      const module = wasm instanceof WebAssembly.Module ? wasm : await WebAssembly.compile(wasm);
      const { exports } = await WebAssembly.instantiate(module, { page: { memory } });
      return new Kernels(memory, /** @type {MatMul} */ (exports.matmul));
    } catch (error) {
      throw new Error(`this browser cannot run the model: ${error}. It needs WebAssembly with SIMD (every browser since 2023)`, { cause: error });
    }
  }

  /**
   * Place for numbers; zeros unless it was used before.
   * @param {number} count
   * @returns {number} where it begins
   */
  reserve(count) {
    const at = this.reserved;
    this.reserved += roundUp(count, ALIGNMENT);
    const missing = this.reserved - this.floats.length;
    if (missing > 0) {
      this.memory.grow(Math.ceil(missing / PAGE_FLOATS));
      this.floats = new Float32Array(this.memory.buffer); // growing detaches the view from the memory
    }
    return at;
  }

  /**
   * @param {number} rows
   * @param {number} columns
   * @returns {Rows}
   */
  reserveRows(rows, columns) {
    const stride = roundUp(columns, PANEL_COLUMNS);
    return { at: this.reserve(roundUp(rows, TILE_ROWS) * stride), stride };
  }

  /**
   * @param {number} inputs
   * @param {number} columns
   * @returns {Panels}
   */
  reservePanels(inputs, columns) {
    return { at: this.reserve((inputs + 1) * roundUp(columns, PANEL_COLUMNS)), inputs, columns };
  }

  /**
   * Copy weights into panels: for 8 columns the biases, then for each input the weights.
   * @param {Panels} panels
   * @param {Weights} weights
   */
  fill({ at, inputs, columns }, { values, from = 0, columnStride, inputStride, scales, bias }) {
    const { floats } = this;
    for (let column = 0; column < roundUp(columns, PANEL_COLUMNS); column++) {
      const inPanel = column % PANEL_COLUMNS;
      let to = at + (column - inPanel) * (inputs + 1) + inPanel;
      const isReal = column < columns;
      const scale = isReal ? (scales?.[column] ?? 1) : 0;
      floats[to] = isReal ? (bias?.[column] ?? 0) : 0;
      for (let input = 0, i = isReal ? from + column * columnStride : from; input < inputs; input++, i += inputStride) {
        to += PANEL_COLUMNS;
        floats[to] = /** @type {number} */ (values[i]) * scale;
      }
    }
  }

  /**
   * out = x @ weights + bias
   * @param {Rows} x
   * @param {Panels} panels
   * @param {Rows} out
   * @param {number} rows
   */
  matmul(x, { at, inputs, columns }, out, rows) {
    const width = roundUp(columns, PANEL_COLUMNS);
    this.multiply(4 * x.at, 4 * x.stride, 4 * at, 4 * out.at, 4 * out.stride, roundUp(rows, TILE_ROWS), inputs, width);
  }
}

/**
 * @param {number} count
 * @param {number} multiple
 */
function roundUp(count, multiple) {
  return Math.ceil(count / multiple) * multiple;
}
