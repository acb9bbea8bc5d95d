/** The layout of the drawing of a map. */

/** @typedef {import("./viewport.js").Viewport} Viewport */

/** The fewest pixels in which a token can be read. */
export const MIN_TOKEN_SIZE = 11;

/**
 * In CSS pixels.
 * @typedef {object} Layout
 * @property {Viewport} viewport
 * @property {number} width of everything
 * @property {number} height
 * @property {number} x where the cells begin
 * @property {number} y
 * @property {number} wide of the cells
 * @property {number} tall
 * @property {number} side width of the bars on the right
 * @property {number} foot height of those below
 * @property {boolean} named whether each query has room for its token
 * @property {boolean} titled whether each key has
 */

/** Between the cells and the bars. */
export const BAR_GAP = 6;

/**
 * The cells keep their place and size however near one comes: only their number changes.
 * @param {number} width there is
 * @param {number} most height of the cells
 * @param {Viewport} viewport
 * @param {{queries: number, keys: number}} map
 * @param {{queries: number, keys: number}} longest width of the longest token on each side
 * @returns {Layout}
 */
export function mapLayout(width, most, viewport, { queries, keys }, longest) {
  const small = width < 560;
  const [side, foot, room, least] = small ? [34, 34, 62, 150] : [64, 56, 116, 220];
  const numbers = 14 + 7 * String(Math.max(queries, keys)).length;
  const x = Math.max(numbers, Math.min(room, longest.queries + 10));
  const y = Math.max(24, Math.min(room, longest.keys + 10));
  const across = Math.max(40, width - x - side - BAR_GAP);
  const tall = Math.min(most, Math.max(least, (across * queries) / keys));
  const wide = Math.min(across, Math.max(least, (tall * keys) / queries));
  const [top, bottom, left, right] = viewport;
  const named = tall / (bottom - top) >= MIN_TOKEN_SIZE;
  const titled = wide / (right - left) >= MIN_TOKEN_SIZE;
  return { viewport, x, y, wide, tall, side, foot, named, titled, width, height: y + tall + BAR_GAP + foot };
}

/**
 * The token under a point, in fractions; null outside of the cells.
 * @param {Layout} layout
 * @param {number} px
 * @param {number} py
 */
export function tokenAt({ viewport, x, y, wide, tall }, px, py) {
  if (px < x || py < y || px >= x + wide || py >= y + tall) return null;
  const [top, bottom, left, right] = viewport;
  return { query: top + ((py - y) / tall) * (bottom - top), key: left + ((px - x) / wide) * (right - left) };
}

/**
 * The rectangle of some cells, no smaller than `least` pixels.
 * @param {Layout} layout
 * @param {Viewport} cells
 * @param {number} least
 */
export function cellsRect({ viewport, x, y, wide, tall }, [from, to, start, end], least) {
  const [top, bottom, left, right] = viewport;
  const [sx, sy] = [wide / (right - left), tall / (bottom - top)];
  const [w, h] = [Math.max(least, (end - start) * sx), Math.max(least, (to - from) * sy)];
  return { x: x + ((start + end) / 2 - left) * sx - w / 2, y: y + ((from + to) / 2 - top) * sy - h / 2, w, h };
}
