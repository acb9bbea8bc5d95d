/** Draws weights as lines between tokens. */

import { element } from "../core/dom.js";

/** @typedef {import("./model.js").Line} Line */
/** @typedef {import("./model.js").ShownHead} ShownHead */

/**
 * The positions of the tokens, in CSS pixels.
 * @typedef {object} Geometry
 * @property {"columns" | "rows" | "arcs"} shape keys at the right, keys above, or both below
 * @property {number} width
 * @property {number} height
 * @property {(query: number) => number} query its middle along its side
 * @property {(key: number) => number} key
 */

/** The width of the line of a weight of 1, in CSS pixels. */
const MAX_LINE_WIDTH = 9;

/**
 * Two canvases, one above the other: the lines of all tokens in sight, and the lines of the token in focus. So
 * only a few lines are drawn anew when another one is.
 */
export function lineLayers() {
  const faint = element("canvas", {});
  const strong = element("canvas", {});
  const root = element("div", { class: "lines", "aria-hidden": "true" }, faint, strong);
  /** @type {Line[]} */
  let background = [];
  let numHidden = 0;

  /**
   * @param {Geometry} geometry
   * @param {import("./model.js").SentenceModel} model
   * @param {import("./model.js").Focus} focus
   * @param {number} threshold
   * @param {{queries: [number, number], keys: [number, number]}} source
   * @param {boolean} all whether anything but the focus may have changed
   */
  function draw(geometry, model, focus, threshold, source, all) {
    if (all) {
      ({ lines: background, left: numHidden } = model.backgroundLines(threshold, source.queries, source.keys));
      drawLines(faint, geometry, background, model.heads, false);
    }
    const { lines, left } = model.focusLines(focus, threshold);
    drawLines(strong, geometry, lines, model.heads, true);
    const others = background.filter((line) => line[focus.side] !== focus.index);
    return { lines: lines.length + others.length, left: left + numHidden };
  }
  return { root, draw };
}

/**
 * Draws lines anew.
 * @param {HTMLCanvasElement} canvas
 * @param {Geometry} geometry
 * @param {Line[]} lines
 * @param {ShownHead[]} heads
 * @param {boolean} strong those that the reader looks at
 */
function drawLines(canvas, geometry, lines, heads, strong) {
  const { width, height } = geometry;
  const sharp = Math.max(1, devicePixelRatio);
  const [pixels, rows] = [Math.round(width * sharp), Math.round(height * sharp)];
  if (canvas.width !== pixels) canvas.width = pixels;
  if (canvas.height !== rows) canvas.height = rows;
  const ctx = canvas.getContext("2d");
  if (!ctx) return;
  ctx.setTransform(sharp, 0, 0, sharp, 0, 0);
  ctx.clearRect(0, 0, width, height);
  // Equal lines of several heads are drawn side by side.
  const spacing = Math.min(5, 16 / heads.length);
  for (const { head, query, key, weight } of lines) {
    const { colour, dash } = /** @type {ShownHead} */ (heads[head]);
    ctx.strokeStyle = colour;
    ctx.setLineDash(dash);
    ctx.lineWidth = 0.6 + weight * (MAX_LINE_WIDTH - 0.6);
    ctx.globalAlpha = strong ? 0.1 + 0.9 * Math.sqrt(weight) : 0.05 + 0.25 * Math.sqrt(weight);
    const shift = (head - (heads.length - 1) / 2) * spacing;
    ctx.stroke(lineCurve(geometry, geometry.query(query) + shift, geometry.key(key) + shift));
  }
  ctx.globalAlpha = 1;
}

/**
 * @param {Geometry} geometry
 * @param {number} query
 * @param {number} key
 */
function lineCurve({ shape, width, height }, query, key) {
  const path = new Path2D();
  if (shape === "columns") {
    path.moveTo(0, query);
    path.bezierCurveTo(width / 2, query, width / 2, key, width, key);
  } else if (shape === "rows") {
    path.moveTo(query, height);
    path.bezierCurveTo(query, height / 2, key, height / 2, key, 0);
  } else {
    const isSelf = Math.abs(query - key) < 1;
    const top = height - Math.min(height * 1.3, isSelf ? 30 : 26 + Math.abs(query - key) * 0.45);
    const bulge = isSelf ? 10 : 0;
    path.moveTo(query, height);
    path.bezierCurveTo(query - bulge, top, key + bulge, top, key, height);
  }
  return path;
}
