/** Weights as heat over an image, and the scale that says what the colours are. */

import { isDark, shade } from "../core/colour.js";
import { patchPlace } from "./imagegrid.js";

/** @typedef {import("../core/data.js").Image} Image */

/**
 * A canvas as sharp as the screen, empty.
 * @param {HTMLCanvasElement} canvas
 * @returns {{pen: CanvasRenderingContext2D, width: number, height: number} | null} in CSS pixels
 */
function sharpPen(canvas) {
  const [width, height, sharp] = [canvas.clientWidth, canvas.clientHeight, Math.max(1, devicePixelRatio)];
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  const pen = canvas.getContext("2d");
  if (!pen || !width || !height) return null;
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  return { pen, width, height };
}

/**
 * Paints each patch by its share of the largest one, as a square root, so that small weights are seen too.
 * @param {HTMLCanvasElement} canvas over the image
 * @param {Image} image
 * @param {ArrayLike<number>} shares of the patches, row by row
 * @param {number} most the largest share
 * @param {number} strength 0: the image alone, to 1: the heat alone
 */
export function paintHeat(canvas, { rows, columns }, shares, most, strength) {
  const drawn = sharpPen(canvas);
  if (!drawn) return;
  const { pen, width, height } = drawn;
  const dark = isDark();
  const edge = (/** @type {number} */ i, /** @type {number} */ count, /** @type {number} */ length) => (i * length) / count;
  pen.globalAlpha = strength;
  for (let i = 0; i < rows * columns; i++) {
    const [row, column] = [Math.floor(i / columns), i % columns];
    const [x, y] = [edge(column, columns, width), edge(row, rows, height)];
    pen.fillStyle = `rgb(${shade(Math.sqrt(most > 0 ? Number(shares[i]) / most : 0), dark).join(" ")})`;
    pen.fillRect(x, y, edge(column + 1, columns, width) - x, edge(row + 1, rows, height) - y);
  }
  pen.globalAlpha = 1;
}

/**
 * Marks patches: the query by a solid frame, others by a dashed one.
 * @param {HTMLCanvasElement} canvas over the heat
 * @param {Image} image
 * @param {number | null} query
 * @param {(number | null)[]} others
 */
export function paintMarks(canvas, image, query, others) {
  const drawn = sharpPen(canvas);
  if (!drawn) return;
  const { pen, width, height } = drawn;
  const [wide, high] = [width / image.columns, height / image.rows];
  pen.strokeStyle = isDark() ? "rgb(255 255 255 / 18%)" : "rgb(0 0 0 / 14%)";
  pen.lineWidth = 1;
  pen.beginPath();
  for (let i = 1; i < image.columns; i++) {
    pen.moveTo(i * wide, 0);
    pen.lineTo(i * wide, height);
  }
  for (let i = 1; i < image.rows; i++) {
    pen.moveTo(0, i * high);
    pen.lineTo(width, i * high);
  }
  pen.stroke();
  for (const [index, dash] of /** @type {[number | null, number[]][]} */ ([...others.map((each) => [each, [4, 3]]), [query, []]])) {
    const place = index === null ? null : patchPlace(image, index);
    if (!place) continue;
    const frame = /** @type {const} */ ([place.column * wide + 1.5, place.row * high + 1.5, wide - 3, high - 3]);
    // Black and white and an inner line: seen on any image.
    for (const [colour, line] of /** @type {[string, number][]} */ ([["#000000", 5], ["#ffffff", 3], ["#d55e00", 2]])) {
      pen.setLineDash(line === 2 ? dash : []);
      if (line === 2 && dash.length) pen.strokeStyle = "#000000";
      else pen.strokeStyle = colour;
      pen.lineWidth = line;
      pen.strokeRect(...frame);
    }
  }
  pen.setLineDash([]);
}

/**
 * The colours from nothing to the largest share.
 * @param {HTMLCanvasElement} canvas
 */
export function paintHeatScale(canvas) {
  const drawn = sharpPen(canvas);
  if (!drawn) return;
  const { pen, width, height } = drawn;
  for (let x = 0; x < width; x++) {
    pen.fillStyle = `rgb(${shade(x / Math.max(1, width - 1), isDark()).join(" ")})`;
    pen.fillRect(x, 0, 1.5, height);
  }
}
