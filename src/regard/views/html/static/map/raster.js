/** Cells as pixels. The colour goes by the square root of a cell's share of the largest, so that small weights are seen. */

import { rampColour } from "../core/colour.js";

/** The number of colours from 0 to the largest weight. */
const NUM_COLOURS = 1024;

/** @type {Map<boolean, Uint32Array>} */
const colourTables = new Map();

/**
 * The colours from 0 to the largest weight, and the colour of NaN, each as a pixel of a canvas.
 * @param {boolean} dark
 */
function colourTable(dark) {
  const cachedTable = colourTables.get(dark);
  if (cachedTable) return cachedTable;
  const pixels = new Uint8ClampedArray((NUM_COLOURS + 1) * 4);
  for (let i = 0; i <= NUM_COLOURS; i++) pixels.set([...rampColour(i === NUM_COLOURS ? NaN : i / (NUM_COLOURS - 1), dark), 255], i * 4);
  const table = new Uint32Array(pixels.buffer);
  colourTables.set(dark, table);
  return table;
}

/**
 * The position of a value on the colour scale, from 0 to 1.
 * @param {number} value
 * @param {number} top the largest
 */
export function colourShare(value, top) {
  return top > 0 ? Math.sqrt(Math.min(1, Math.max(0, value / top))) : 0;
}

/**
 * Paints cells on a canvas, a pixel each.
 * @param {HTMLCanvasElement} canvas
 * @param {{rows: number, columns: number, cells: Float32Array}} picture NaN: unknown
 * @param {number} top the value of the strongest colour
 * @param {boolean} dark
 */
export function paintRaster(canvas, { rows, columns, cells }, top, dark) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  if (!context || rows * columns === 0) return;
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const table = colourTable(dark);
  for (let i = 0; i < cells.length; i++) {
    const cell = /** @type {number} */ (cells[i]);
    const index = cell !== cell ? NUM_COLOURS : Math.round(colourShare(cell, top) * (NUM_COLOURS - 1));
    pixels[i] = /** @type {number} */ (table[index]);
  }
  context.putImageData(image, 0, 0);
}

/**
 * The largest of some values; 0 where there is none. NaN does not count.
 * @param {ArrayLike<number>} values
 */
export function maxOf(values) {
  let largest = 0;
  for (let i = 0; i < values.length; i++) if (Number(values[i]) > largest) largest = Number(values[i]);
  return largest;
}

/**
 * A round share that is at least as large: 0.34 gives 0.5. So the colours stay while the picture moves.
 * @param {number} share
 */
export function roundUp(share) {
  if (!(share > 0)) return 1;
  const exponential = 10 ** Math.floor(Math.log10(share));
  const round = [1, 2, 5, 10].find((each) => each * exponential >= share * 0.9999) ?? 10;
  return Math.min(1, round * exponential);
}
