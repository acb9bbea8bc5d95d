/** Weights as heat over an image, and the scale that says what the colours are. */

import { isDark, rampColour } from "../core/colour.js";
import { patchOfToken } from "./grid.js";

/** @typedef {import("../core/data.js").PatchGrid} PatchGrid */

/**
 * A canvas as sharp as the screen, empty.
 * @param {HTMLCanvasElement} canvas
 * @returns {{ctx: CanvasRenderingContext2D, width: number, height: number} | null} in CSS pixels
 */
function prepareCanvas(canvas) {
  const [width, height, sharp] = [canvas.clientWidth, canvas.clientHeight, Math.max(1, devicePixelRatio)];
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  const ctx = canvas.getContext("2d");
  if (!ctx || !width || !height) return null;
  ctx.setTransform(sharp, 0, 0, sharp, 0, 0);
  return { ctx, width, height };
}

/**
 * Paints each patch by its share of the largest one, as a square root, so that small weights are seen too.
 * @param {HTMLCanvasElement} canvas over the image
 * @param {PatchGrid} grid
 * @param {ArrayLike<number>} shares of the patches, row by row
 * @param {number} most the largest share
 * @param {number} strength 0: the image alone, to 1: the heat alone
 */
export function paintHeat(canvas, { rows, columns }, shares, most, strength) {
  const prepared = prepareCanvas(canvas);
  if (!prepared) return;
  const { ctx, width, height } = prepared;
  const dark = isDark();
  const edge = (/** @type {number} */ i, /** @type {number} */ count, /** @type {number} */ length) => (i * length) / count;
  ctx.globalAlpha = strength;
  for (let i = 0; i < rows * columns; i++) {
    const [row, column] = [Math.floor(i / columns), i % columns];
    const [x, y] = [edge(column, columns, width), edge(row, rows, height)];
    ctx.fillStyle = `rgb(${rampColour(Math.sqrt(most > 0 ? Number(shares[i]) / most : 0), dark).join(" ")})`;
    ctx.fillRect(x, y, edge(column + 1, columns, width) - x, edge(row + 1, rows, height) - y);
  }
  ctx.globalAlpha = 1;
}

/**
 * Marks patches: the chosen one by a solid frame, others by a dashed one.
 * @param {HTMLCanvasElement} canvas over the heat
 * @param {PatchGrid} grid
 * @param {number | null} chosen
 * @param {(number | null)[]} others
 */
export function paintFrames(canvas, grid, chosen, others) {
  const prepared = prepareCanvas(canvas);
  if (!prepared) return;
  const { ctx, width, height } = prepared;
  const [wide, high] = [width / grid.columns, height / grid.rows];
  ctx.strokeStyle = isDark() ? "rgb(255 255 255 / 18%)" : "rgb(0 0 0 / 14%)";
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (let i = 1; i < grid.columns; i++) {
    ctx.moveTo(i * wide, 0);
    ctx.lineTo(i * wide, height);
  }
  for (let i = 1; i < grid.rows; i++) {
    ctx.moveTo(0, i * high);
    ctx.lineTo(width, i * high);
  }
  ctx.stroke();
  for (const [index, dash] of /** @type {[number | null, number[]][]} */ ([...others.map((each) => [each, [4, 3]]), [chosen, []]])) {
    const place = index === null ? null : patchOfToken(grid, index);
    if (!place) continue;
    const frame = /** @type {const} */ ([place.column * wide + 1.5, place.row * high + 1.5, wide - 3, high - 3]);
    // Black and white and an inner line: seen on any image.
    for (const [colour, line] of /** @type {[string, number][]} */ ([["#000000", 5], ["#ffffff", 3], ["#d55e00", 2]])) {
      ctx.setLineDash(line === 2 ? dash : []);
      if (line === 2 && dash.length) ctx.strokeStyle = "#000000";
      else ctx.strokeStyle = colour;
      ctx.lineWidth = line;
      ctx.strokeRect(...frame);
    }
  }
  ctx.setLineDash([]);
}

/**
 * The colours from nothing to the largest share.
 * @param {HTMLCanvasElement} canvas
 */
export function paintHeatScale(canvas) {
  const prepared = prepareCanvas(canvas);
  if (!prepared) return;
  const { ctx, width, height } = prepared;
  for (let x = 0; x < width; x++) {
    ctx.fillStyle = `rgb(${rampColour(x / Math.max(1, width - 1), isDark()).join(" ")})`;
    ctx.fillRect(x, 0, 1.5, height);
  }
}
