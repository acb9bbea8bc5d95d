/** The drawing of a map: cells, the names along its sides, the bars beside it, and the marks over it. */

import { axisTicks } from "./viewport.js";
import { visible } from "../core/dom.js";
import { cellsRect, BAR_GAP } from "./layout.js";
import { binMeans } from "./margins.js";

/** @typedef {import("./layout.js").Layout} Layout */
/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {CanvasRenderingContext2D} Context2D */

/**
 * @typedef {object} Palette
 * @property {string} ink
 * @property {string} quiet
 * @property {string} line
 * @property {string} accent
 * @property {string} paper
 */

/** The fewest pixels of a cell that shows its number. */
const MIN_NUMBER_WIDTH = 38;

/** The widest token is searched among this many tokens with the most characters. */
const MEASURED = 24;

/** The most characters of a name that are measured. */
const LONGEST = 200;

const NAME_FONT = "12px system-ui, sans-serif";

/**
 * A canvas of a size in CSS pixels, as sharp as the screen; empty.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {Context2D | null}
 */
export function prepareCanvas(canvas, width, height) {
  const sharp = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * sharp), Math.round(height * sharp)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx?.setTransform(sharp, 0, 0, sharp, 0, 0);
  ctx?.clearRect(0, 0, width, height);
  return ctx;
}

/**
 * The colours of the page.
 * @param {HTMLCanvasElement} canvas
 * @returns {Palette}
 */
export function readPalette(canvas) {
  const style = getComputedStyle(canvas);
  const property = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim() || "#888888";
  return { ink: property("ink"), quiet: property("quiet"), line: property("line"), accent: property("accent"), paper: property("paper") };
}

/**
 * The width of the widest name.
 * @param {HTMLCanvasElement} canvas
 * @param {string[]} names
 */
export function widestName(canvas, names) {
  const ctx = canvas.getContext("2d");
  const longest = names.length > MEASURED ? [...names].sort((a, b) => b.length - a.length).slice(0, MEASURED) : names;
  if (ctx) ctx.font = NAME_FONT;
  return Math.max(...longest.map((name) => ctx?.measureText(visible(name)).width ?? 0));
}

/**
 * A part of a raster where the cells stand.
 * @param {Context2D} ctx
 * @param {Layout} layout
 * @param {HTMLCanvasElement} raster
 * @param {[number, number, number, number]} part x, y, width and height in the raster, in fractions of its pixels
 * @param {Palette} palette
 */
export function paintCells(ctx, { x, y, wide, tall }, raster, [px, py, w, h], palette) {
  // Sharp squares; where one is hardly larger than a pixel, some would be twice as large as others.
  const pixels = (wide / w) * (window.devicePixelRatio || 1);
  ctx.imageSmoothingEnabled = pixels > 1.02 && pixels < 3;
  if (raster.width * raster.height > 0) ctx.drawImage(raster, px, py, w, h, x, y, wide, tall);
  ctx.strokeStyle = palette.line;
  ctx.lineWidth = 1;
  ctx.strokeRect(x - 0.5, y - 0.5, wide + 1, tall + 1);
}

/**
 * The weights as numbers in their cells, where there is room.
 * @param {Context2D} ctx
 * @param {Layout} layout
 * @param {(query: number, key: number) => number | undefined} weight
 * @param {(weight: number) => string} textColour what can be read on its colour
 * @returns {boolean} whether there was
 */
export function paintNumbers(ctx, layout, weight, textColour) {
  const [top, bottom, left, right] = layout.viewport;
  if (layout.wide / (right - left) < MIN_NUMBER_WIDTH || layout.tall / (bottom - top) < 18) return false;
  ctx.font = "11px system-ui, sans-serif";
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  for (let query = top; query < bottom; query++) {
    for (let key = left; key < right; key++) {
      const value = weight(query, key);
      if (value === undefined || Number.isNaN(value)) continue;
      const box = cellsRect(layout, [query, query + 1, key, key + 1], 0);
      ctx.fillStyle = textColour(value);
      ctx.fillText(percentDigits(value * 100), box.x + box.w / 2, box.y + box.h / 2);
    }
  }
  return true;
}

/**
 * The tokens where there is room, else positions.
 * @param {Context2D} ctx
 * @param {Layout} layout
 * @param {{queries: string[], keys: string[]}} tokens
 * @param {Palette} palette
 */
export function paintNames(ctx, layout, tokens, palette) {
  const { viewport, x, y, wide, tall, named, titled } = layout;
  const [top, bottom, left, right] = viewport;
  ctx.font = NAME_FONT;
  ctx.fillStyle = palette.ink;
  ctx.strokeStyle = palette.quiet;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  ctx.lineWidth = 1;
  const rows = named ? axisTicks(top, bottom, bottom - top) : axisTicks(top, bottom, tall / 36);
  for (const query of rows) {
    const middle = y + ((query + 0.5 - top) / (bottom - top)) * tall;
    ctx.fillText(named ? fitText(ctx, tokens.queries[query] ?? "", x - 8) : String(query), x - 6, middle);
    if (!named) strokeLine(ctx, x - 4, middle, x - 1, middle);
  }
  const columns = titled ? axisTicks(left, right, right - left) : axisTicks(left, right, wide / 56);
  ctx.textAlign = titled ? "left" : "center";
  for (const key of columns) {
    const middle = x + ((key + 0.5 - left) / (right - left)) * wide;
    if (!titled) {
      ctx.fillText(String(key), middle, y - 12);
      strokeLine(ctx, middle, y - 4, middle, y - 1);
      continue;
    }
    ctx.save();
    ctx.translate(middle, y - 5);
    ctx.rotate(-Math.PI / 2);
    ctx.fillText(fitText(ctx, tokens.keys[key] ?? "", y - 8), 0, 0);
    ctx.restore();
  }
}

/**
 * Bars on the right for the queries, and below for the keys.
 * @param {Context2D} ctx
 * @param {Layout} layout
 * @param {import("./margins.js").Margins} margins
 * @param {{entropy: number, received: number}} largest
 * @param {Palette} palette
 */
export function paintMargins(ctx, layout, { entropy, received }, largest, palette) {
  const { viewport, x, y, wide, tall, side, foot } = layout;
  const [top, bottom, left, right] = viewport;
  ctx.fillStyle = palette.quiet;
  const start = x + wide + BAR_GAP;
  if (entropy) {
    const bars = Math.min(bottom - top, Math.floor(tall));
    const size = tall / bars;
    const gap = size > 3 ? 1 : 0;
    ctx.beginPath(); // one shape, so that narrow bars have no seams
    binMeans(entropy, top, bottom, bars).forEach((mean, bar) => {
      const long = Math.max(0.5, (mean / Math.max(largest.entropy, 1e-9)) * (side - 2));
      if (mean >= 0) ctx.rect(start, y + bar * size, long, size - gap);
    });
    ctx.fill();
  }
  const bars = Math.min(right - left, Math.floor(wide));
  const size = wide / bars;
  const under = y + tall + BAR_GAP;
  const long = (/** @type {number} */ share) => Math.sqrt(share / Math.max(largest.received, 1)) * (foot - 2);
  ctx.beginPath();
  binMeans(received, left, right, bars).forEach((mean, bar) => {
    if (mean >= 0) ctx.rect(x + bar * size, under, size > 3 ? size - 1 : size, Math.max(0.5, long(mean)));
  });
  ctx.fill();
  ctx.strokeStyle = palette.accent;
  ctx.setLineDash([4, 3]);
  strokeLine(ctx, x, under + long(1), x + wide, under + long(1));
  ctx.setLineDash([]);
}

/**
 * Two digits of a number of per cent.
 * @param {number} value
 */
function percentDigits(value) {
  if (value > 0 && value < 0.0095) return "<0.01";
  return value === 0 ? "0" : value.toFixed(value < 0.995 ? 2 : value < 9.95 ? 1 : 0);
}

/**
 * How much of a token there is room for, cut between two characters as they are read.
 * @param {Context2D} ctx
 * @param {string} text
 * @param {number} room
 */
function fitText(ctx, text, room) {
  const escaped = visible(text.slice(0, LONGEST));
  if (escaped.length < LONGEST && ctx.measureText(escaped).width <= room) return escaped;
  const parts = [...new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(escaped)].map(({ segment }) => segment);
  while (parts.length > 1 && ctx.measureText(`${parts.join("")}…`).width > room) parts.pop();
  return `${parts.join("")}…`;
}

/**
 * @param {Context2D} ctx
 * @param {number} fromX
 * @param {number} fromY
 * @param {number} toX
 * @param {number} toY
 */
function strokeLine(ctx, fromX, fromY, toX, toY) {
  ctx.beginPath();
  ctx.moveTo(fromX, fromY);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}
