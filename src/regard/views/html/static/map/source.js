/** The weights of a viewport: exact weights where they can be computed in time, else the pooled map. */

import { rowIndex } from "../core/attention.js";
import { cellOf, cellEdge } from "./margins.js";
import { maxOf, paintRaster, roundUp } from "./raster.js";
import { isAffordable, LazyWeights, countRows } from "./lazyweights.js";

/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {import("../core/attention.js").Head} Head */
/** @typedef {import("../core/data.js").Data} Data */

/** With at most this many pairs in view the pooled map is drawn token by token, so that its cells have their true edges. */
const BY_TOKEN = 2 ** 18;

/** Milliseconds in which exact weights come at once; where they need longer, the picture is shown meanwhile. */
const AT_ONCE = 50;

/**
 * @typedef {object} PaintedView
 * @property {"exact" | "picture"} from
 * @property {boolean} busy whether exact weights are on their way
 * @property {[number, number, number, number]} part of the raster that is the area: x, y, width, height
 * @property {number} top the weight of the strongest colour
 * @property {number} tall queries in a cell, about
 * @property {number} wide keys in a cell
 * @property {(query: number, key: number) => Cell} cell which is shown at a query and a key
 */

/**
 * @typedef {object} Cell
 * @property {Viewport} viewport
 * @property {number} share of its queries' weights, on average; NaN where it is unknown
 * @property {boolean} exact
 */

export class WeightSource {
  raster = document.createElement("canvas");
  /** @type {LazyWeights | null} */
  #lazyWeights;

  /**
   * @param {Data} data
   * @param {number} index of the attention
   * @param {number} head
   */
  constructor(data, index, head) {
    const { queries, keys } = data.attention(index);
    this.map = { queries, keys };
    this.head = data.head(index, head);
    this.maxPooled = data.headFacts(index, head).max_pooled;
    this.pooledMap = data.pooledMap(index, head);
    this.#lazyWeights = this.head && new LazyWeights(this.head);
  }

  /**
   * Whether a query's row can be computed.
   * @param {number} query
   */
  hasRow(query) {
    return this.head !== null && rowIndex(this.head, query) >= 0;
  }

  /**
   * Whether an area's exact weights can be shown.
   * @param {Viewport} viewport
   */
  canBeExact(viewport) {
    return this.head !== null && countRows(this.head, viewport) > 0 && isAffordable(this.head, viewport);
  }

  /** Every weight of the head, where they are computed; else null. */
  get allWeights() {
    return this.#lazyWeights?.allWeights ?? null;
  }

  /**
   * A weight, where it is computed already.
   * @param {number} query
   * @param {number} key
   */
  weightAt(query, key) {
    return this.#lazyWeights?.weightAt(query, key);
  }

  /**
   * Computes exact weights for a while.
   * @returns {boolean} whether all are there
   */
  compute() {
    return this.#lazyWeights?.compute(AT_ONCE / 2) ?? true;
  }

  /**
   * Paints an area into the raster.
   * @param {Viewport} viewport
   * @param {{wide: number, tall: number}} pixels of the screen
   * @param {boolean} dark
   * @returns {PaintedView}
   */
  paint(viewport, pixels, dark) {
    const lazyWeights = this.canBeExact(viewport) ? this.#lazyWeights : null;
    lazyWeights?.request(viewport);
    if (lazyWeights?.compute(AT_ONCE)) return this.#paintExact(lazyWeights, viewport, pixels, dark);
    return { ...this.#paintPooled(viewport, dark), busy: lazyWeights !== null };
  }

  /**
   * @param {LazyWeights} lazyWeights
   * @param {Viewport} viewport
   * @param {{wide: number, tall: number}} pixels
   * @param {boolean} dark
   * @returns {PaintedView}
   */
  #paintExact(lazyWeights, viewport, pixels, dark) {
    const [top, bottom, left, right] = viewport;
    const tall = Math.max(1, Math.ceil((bottom - top) / pixels.tall));
    const wide = Math.max(1, Math.ceil((right - left) / pixels.wide));
    const pooled = lazyWeights.pooled(viewport, tall, wide);
    const most = roundUp(maxOf(pooled.cells));
    paintRaster(this.raster, pooled, most, dark);
    const { queries, keys } = this.map;
    return {
      from: "exact",
      busy: false,
      part: [(left - pooled.left) / wide, (top - pooled.top) / tall, (right - left) / wide, (bottom - top) / tall],
      top: most,
      tall,
      wide,
      cell: (query, key) => {
        const [row, column] = [Math.floor((query - pooled.top) / tall), Math.floor((key - pooled.left) / wide)];
        const [from, start] = [pooled.top + row * tall, pooled.left + column * wide];
        return {
          viewport: [from, Math.min(queries, from + tall), start, Math.min(keys, start + wide)],
          share: Number(pooled.cells[row * pooled.columns + column]),
          exact: true,
        };
      },
    };
  }

  /**
   * @param {Viewport} viewport
   * @param {boolean} dark
   * @returns {PaintedView}
   */
  #paintPooled(viewport, dark) {
    const { rows, columns, cells } = this.pooledMap;
    const { queries, keys } = this.map;
    const [top, bottom, left, right] = viewport;
    const [high, broad] = [bottom - top, right - left];
    const most = roundUp(this.maxPooled);
    const cellIndex = (/** @type {number} */ query, /** @type {number} */ key) => cellOf(query, queries, rows) * columns + cellOf(key, keys, columns);
    /** @type {PaintedView["part"]} */
    let part = [0, 0, broad, high];
    if (high * broad <= BY_TOKEN) {
      const enlarged = new Float32Array(high * broad);
      for (let i = 0; i < enlarged.length; i++) enlarged[i] = Number(cells[cellIndex(top + Math.floor(i / broad), left + (i % broad))]);
      paintRaster(this.raster, { rows: high, columns: broad, cells: enlarged }, most, dark);
    } else {
      paintRaster(this.raster, this.pooledMap, most, dark);
      part = [(left / keys) * columns, (top / queries) * rows, (broad / keys) * columns, (high / queries) * rows];
    }
    return {
      from: "picture",
      busy: false,
      part,
      top: most,
      tall: queries / rows,
      wide: keys / columns,
      cell: (query, key) => {
        const [row, column] = [cellOf(query, queries, rows), cellOf(key, keys, columns)];
        return {
          viewport: [cellEdge(row, queries, rows), cellEdge(row + 1, queries, rows), cellEdge(column, keys, columns), cellEdge(column + 1, keys, columns)],
          share: Number(cells[row * columns + column]),
          exact: false,
        };
      },
    };
  }
}
