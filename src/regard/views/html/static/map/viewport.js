/** Which part of a map is shown: zooming, panning, and the marks along its sides. */

/** @typedef {[top: number, bottom: number, left: number, right: number]} Viewport queries from top to bottom, keys from left to right, the last ones not included */

/** The fewest tokens of a side after zooming in. */
const MIN_SIDE = 4;

/**
 * @param {Viewport} viewport
 * @param {number} factor below 1 comes nearer
 * @param {{query: number, key: number}} point that stays where it is; in fractions of tokens
 * @param {{queries: number, keys: number}} map
 * @returns {Viewport}
 */
export function zoomViewport([top, bottom, left, right], factor, { query, key }, { queries, keys }) {
  return [...stretchSide(top, bottom, factor, query, queries), ...stretchSide(left, right, factor, key, keys)];
}

/**
 * @param {Viewport} viewport
 * @param {number} down in queries
 * @param {number} across in keys
 * @param {{queries: number, keys: number}} map
 * @returns {Viewport}
 */
export function panViewport([top, bottom, left, right], down, across, { queries, keys }) {
  return [...shiftSide(top, bottom, Math.round(down), queries), ...shiftSide(left, right, Math.round(across), keys)];
}

/**
 * The same area, moved as little as it must be to show a cell.
 * @param {Viewport} viewport
 * @param {{query: number, key: number}} cell
 * @param {{queries: number, keys: number}} map
 * @returns {Viewport}
 */
export function panTo(viewport, { query, key }, map) {
  const [top, bottom, left, right] = viewport;
  const shift = (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ at) =>
    at < from ? at - from : Math.max(0, at + 1 - to);
  return panViewport(viewport, shift(top, bottom, query), shift(left, right, key), map);
}

/**
 * An area and half of it around, as far as the map goes.
 * @param {Viewport} viewport
 * @param {{queries: number, keys: number}} map
 * @returns {Viewport}
 */
export function expandViewport([top, bottom, left, right], { queries, keys }) {
  const [tall, wide] = [(bottom - top) >> 1, (right - left) >> 1];
  return [Math.max(0, top - tall), Math.min(queries, bottom + tall), Math.max(0, left - wide), Math.min(keys, right + wide)];
}

/**
 * Whether one area lies in another.
 * @param {Viewport} outer
 * @param {Viewport} inner
 */
export function containsViewport(outer, inner) {
  return outer[0] <= inner[0] && outer[1] >= inner[1] && outer[2] <= inner[2] && outer[3] >= inner[3];
}

/**
 * Round positions between two, with room for a number at each.
 * @param {number} from
 * @param {number} to not included
 * @param {number} most the largest number of ticks
 */
export function axisTicks(from, to, most) {
  const minStep = (to - from) / Math.max(1, most);
  const exponential = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, minStep))));
  const step = [1, 2, 5, 10].map((each) => each * exponential).find((each) => each >= minStep) ?? 10 * exponential;
  const first = Math.ceil(from / step) * step;
  return Array.from({ length: Math.max(0, Math.ceil((to - first) / step)) }, (_, i) => first + i * step);
}

/**
 * @param {number} from
 * @param {number} to
 * @param {number} factor
 * @param {number} point
 * @param {number} count
 * @returns {[number, number]}
 */
function stretchSide(from, to, factor, point, count) {
  const old = to - from;
  // A step always changes something, however few tokens are shown.
  const newSize = factor < 1 ? Math.min(old - 1, Math.round(old * factor)) : Math.max(old + 1, Math.round(old * factor));
  const size = Math.min(count, Math.max(Math.min(MIN_SIDE, old, count), newSize));
  const start = Math.round(point - ((point - from) / old) * size);
  return shiftSide(start, start + size, 0, count);
}

/**
 * @param {number} from
 * @param {number} to
 * @param {number} by
 * @param {number} count
 * @returns {[number, number]}
 */
function shiftSide(from, to, by, count) {
  const start = Math.min(Math.max(0, from + by), count - (to - from));
  return [start, start + to - from];
}
