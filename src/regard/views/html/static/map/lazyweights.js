/** The exact weights of a part of a map, computed a little at a time, and pooled where the screen has fewer pixels. */

import { expandViewport, containsViewport } from "./viewport.js";
import { tile } from "../core/attention.js";

/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {import("../core/attention.js").Head} Head */

/** The most weights that are computed for one view of a map. */
export const MAX_VIEW_WEIGHTS = 2 ** 22;

/** All weights of a map with at most this many are computed at once; panning and zooming then compute nothing. */
const MAX_EAGER_WEIGHTS = 2 ** 20;

/**
 * The number of rows of a viewport that the page has.
 * @param {Head} head
 * @param {Viewport} viewport
 */
export function countRows({ rows }, [top, bottom]) {
  return rows ? rows.filter((row) => row >= top && row < bottom).length : bottom - top;
}

/**
 * Whether the weights of a viewport can be computed while the reader waits.
 * @param {Head} head
 * @param {Viewport} viewport
 */
export function isAffordable(head, viewport) {
  const [top, bottom, left, right] = viewport;
  const columns = head.lse ? right - left : head.keys;
  return countRows(head, viewport) * columns <= MAX_VIEW_WEIGHTS && (bottom - top) * (right - left) <= MAX_VIEW_WEIGHTS;
}

/** The weights of one head around what is shown. */
export class LazyWeights {
  /** @type {Head} */
  head;
  /** @type {Viewport} */
  viewport = [0, 0, 0, 0];
  weights = new Float32Array(0);
  /** the first row that is not computed yet */
  #next = 0;

  /** @param {Head} head */
  constructor(head) {
    this.head = { ...head, v: null }; // weights alone
  }

  /** Every weight of the head, where they are computed; else null. */
  get allWeights() {
    const { queries, keys, rows } = this.head;
    return !rows && this.weights.length === queries * keys && this.#next >= queries ? this.weights : null;
  }

  /**
   * Says what is wanted. What is there already is kept.
   * @param {Viewport} viewport that is affordable
   */
  request(viewport) {
    if (containsViewport(this.viewport, viewport) && this.viewport[1] > 0) return;
    const { queries, keys } = this.head;
    const choices = [/** @type {Viewport} */ ([0, queries, 0, keys]), expandViewport(viewport, this.head), viewport];
    // Without the rows' sums of exponentials a part of a row costs as much as all of it.
    const limits = [this.head.lse ? MAX_EAGER_WEIGHTS : MAX_VIEW_WEIGHTS, MAX_VIEW_WEIGHTS, Infinity];
    const target = choices.find((each, i) => viewportSize(each) <= Number(limits[i]) && isAffordable(this.head, each)) ?? viewport;
    this.viewport = target;
    this.weights = new Float32Array(viewportSize(target));
    this.#next = target[0];
  }

  /**
   * Computes for a while.
   * @param {number} milliseconds
   * @returns {boolean} whether all is done
   */
  compute(milliseconds) {
    const [top, bottom, left, right] = this.viewport;
    const wide = right - left;
    const deadline = performance.now() + milliseconds;
    const step = Math.max(1, Math.floor(16384 / wide));
    while (this.#next < bottom && performance.now() < deadline) {
      const end = Math.min(bottom, this.#next + (this.head.lse ? step : 1));
      this.weights.set(tile(this.head, this.#next, end, left, right), (this.#next - top) * wide);
      this.#next = end;
    }
    return this.#next >= bottom;
  }

  /**
   * A weight; NaN where the page has no row, undefined where it is not computed yet.
   * @param {number} query
   * @param {number} key
   * @returns {number | undefined}
   */
  weightAt(query, key) {
    const [top, , left, right] = this.viewport;
    if (!containsViewport(this.viewport, [query, query + 1, key, key + 1]) || query >= this.#next) return undefined;
    return this.weights[(query - top) * (right - left) + key - left];
  }

  /**
   * An area in cells of `tall` queries and `wide` keys: the sum over the keys, averaged over the queries that are
   * carried. The cells begin at multiples, so that they stay the same when the area moves.
   * @param {Viewport} viewport
   * @param {number} tall
   * @param {number} wide
   * @returns {{rows: number, columns: number, cells: Float32Array, top: number, left: number}} cells, and where the first
   *   one begins
   */
  pooled(viewport, tall, wide) {
    const [top, bottom, left, right] = viewport;
    const [from, to, start, end] = [Math.floor(top / tall), Math.ceil(bottom / tall), Math.floor(left / wide), Math.ceil(right / wide)];
    const rows = to - from;
    const columns = end - start;
    const cells = new Float32Array(rows * columns);
    const [firstRow, deadline, first, last] = this.viewport;
    for (let row = 0; row < rows; row++) {
      let counted = 0;
      const low = Math.max(firstRow, (from + row) * tall);
      const high = Math.min(deadline, (from + row + 1) * tall);
      for (let query = low; query < high; query++) {
        const line = (query - firstRow) * (last - first);
        if (Number.isNaN(this.weights[line])) continue;
        counted++;
        for (let column = 0; column < columns; column++) {
          const stop = Math.min(last, (start + column + 1) * wide);
          for (let key = Math.max(first, (start + column) * wide); key < stop; key++) {
            cells[row * columns + column] = Number(cells[row * columns + column]) + Number(this.weights[line + key - first]);
          }
        }
      }
      for (let i = row * columns; i < (row + 1) * columns; i++) cells[i] = counted ? Number(cells[i]) / counted : NaN;
    }
    return { rows, columns, cells, top: from * tall, left: start * wide };
  }
}

/** @param {Viewport} viewport */
function viewportSize([top, bottom, left, right]) {
  return (bottom - top) * (right - left);
}
