/** The map of one head while a text is written: a row for each token that the model has read. */

import { isDark } from "../core/colour.js";
import { element } from "../core/dom.js";
import { mapLayout } from "../map/layout.js";
import { paintCells, paintNames, prepareCanvas, readPalette, widestName } from "../map/paint.js";
import { maxOf, paintRaster, roundUp } from "../map/raster.js";

/** The most pixels of the map's height. */
const MAX_HEIGHT = 420;

/**
 * The rows of a map that grows.
 * @typedef {object} GrowingRows
 * @property {string[]} tokens
 * @property {(ArrayLike<number> | null)[]} rows of each token that was read; null: not known. Shorter rows end in zeros
 */

export class GrowingMap {
  canvas = element("canvas", { role: "img" });
  #raster = document.createElement("canvas");

  /**
   * @param {GrowingRows} map
   * @param {number} width there is
   * @param {string} name what it is a map of
   */
  paint({ tokens, rows }, width, name) {
    const count = rows.length;
    this.canvas.setAttribute("aria-label", `${name}: ${count} rows, one for each token that was read`);
    if (count === 0 || width === 0) return;
    const cells = squareCells(rows);
    const palette = readPalette(this.canvas);
    const widest = widestName(this.canvas, tokens);
    const layout = mapLayout(width, MAX_HEIGHT, [0, count, 0, count], { queries: count, keys: count }, { queries: widest, keys: widest });
    const ctx = prepareCanvas(this.canvas, layout.width, layout.y + layout.tall + 2);
    if (!ctx) return;
    paintRaster(this.#raster, { rows: count, columns: count, cells }, roundUp(maxOf(cells)), isDark());
    paintCells(ctx, layout, this.#raster, [0, 0, count, count], palette);
    paintNames(ctx, layout, { queries: tokens, keys: tokens }, palette);
  }
}

/**
 * Rows as a square: no token sees one after it, and what is not known is NaN.
 * @param {GrowingRows["rows"]} rows
 */
export function squareCells(rows) {
  const cells = new Float32Array(rows.length ** 2);
  rows.forEach((row, query) => {
    for (let key = 0; key <= query; key++) cells[query * rows.length + key] = row === null ? NaN : (row[key] ?? 0);
  });
  return cells;
}

/**
 * The rows of the prompt's map, and those of the tokens that were written.
 * @param {{tokens: string[], weights: ArrayLike<number> | null}} prompt its tokens, and the weights of all of them if they are known
 * @param {import("../live/engine.js").WrittenToken[]} written
 * @returns {GrowingRows}
 */
export function growingRows({ tokens, weights }, written) {
  const count = tokens.length;
  /** @type {GrowingRows} */
  const map = { tokens: [...tokens], rows: tokens.map((_, query) => weights && Array.from({ length: count }, (_, key) => Number(weights[query * count + key]))) };
  for (const { query, weights: row } of written) {
    map.tokens[row.length - 1] = query; // the last token of the prompt first: its row is here already, and the same
    map.rows[row.length - 1] = row;
  }
  return map;
}
