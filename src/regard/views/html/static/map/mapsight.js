/** What is seen of a map's area: exact weights where they can be had in time, else the picture that every page carries. */

import { place } from "../core/attention.js";
import { cellOf, cellEdge } from "./margins.js";
import { largestOf, paintRaster, roundShare } from "./raster.js";
import { affordable, Nearby, rowsCarried } from "./weights.js";

/** @typedef {import("./area.js").Area} Area */
/** @typedef {import("../core/attention.js").Head} Head */
/** @typedef {import("../core/data.js").Data} Data */

/** A picture is drawn token by token where so few are shown, so that its cells' edges stand where they are. */
const BY_TOKEN = 2 ** 18;

/** Milliseconds in which exact weights come at once; where they need longer, the picture is shown meanwhile. */
const AT_ONCE = 50;

/**
 * @typedef {object} Seen
 * @property {"exact" | "picture"} from
 * @property {boolean} busy whether exact weights are on their way
 * @property {[number, number, number, number]} part of the raster that is the area: x, y, width, height
 * @property {number} top the share that the strongest colour stands for
 * @property {number} tall queries in a cell, about
 * @property {number} wide keys in a cell
 * @property {(query: number, key: number) => Cell} cell which is shown at a query and a key
 */

/**
 * @typedef {object} Cell
 * @property {Area} area
 * @property {number} share of its queries' weights, on average; NaN where it is not known
 * @property {boolean} exact
 */

export class Sight {
  raster = document.createElement("canvas");
  /** @type {Nearby | null} */
  #nearby;

  /**
   * @param {Data} data
   * @param {number} index of the attention
   * @param {number} head
   */
  constructor(data, index, head) {
    const { queries, keys } = data.attention(index);
    this.map = { queries, keys };
    this.head = data.head(index, head);
    this.most = data.about(index, head).most;
    this.picture = data.picture(index, head);
    this.#nearby = this.head && new Nearby(this.head);
  }

  /**
   * Whether a query's row can be computed.
   * @param {number} query
   */
  carries(query) {
    return this.head !== null && place(this.head, query) >= 0;
  }

  /**
   * Whether an area's exact weights can be shown.
   * @param {Area} area
   */
  near(area) {
    return this.head !== null && rowsCarried(this.head, area) > 0 && affordable(this.head, area);
  }

  /** Every weight of the head, where they are computed; else null. */
  get whole() {
    return this.#nearby?.whole ?? null;
  }

  /**
   * A weight, where it is computed already.
   * @param {number} query
   * @param {number} key
   */
  at(query, key) {
    return this.#nearby?.at(query, key);
  }

  /**
   * Computes exact weights for a while.
   * @returns {boolean} whether all are there
   */
  work() {
    return this.#nearby?.work(AT_ONCE / 2) ?? true;
  }

  /**
   * Paints an area into the raster.
   * @param {Area} area
   * @param {{wide: number, tall: number}} pixels of the screen
   * @param {boolean} dark
   * @returns {Seen}
   */
  see(area, pixels, dark) {
    const nearby = this.near(area) ? this.#nearby : null;
    nearby?.want(area);
    if (nearby?.work(AT_ONCE)) return this.#exact(nearby, area, pixels, dark);
    return { ...this.#far(area, dark), busy: nearby !== null };
  }

  /**
   * @param {Nearby} nearby
   * @param {Area} area
   * @param {{wide: number, tall: number}} pixels
   * @param {boolean} dark
   * @returns {Seen}
   */
  #exact(nearby, area, pixels, dark) {
    const [top, bottom, left, right] = area;
    const tall = Math.max(1, Math.ceil((bottom - top) / pixels.tall));
    const wide = Math.max(1, Math.ceil((right - left) / pixels.wide));
    const pooled = nearby.pooled(area, tall, wide);
    const most = roundShare(largestOf(pooled.cells));
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
          area: [from, Math.min(queries, from + tall), start, Math.min(keys, start + wide)],
          share: Number(pooled.cells[row * pooled.columns + column]),
          exact: true,
        };
      },
    };
  }

  /**
   * @param {Area} area
   * @param {boolean} dark
   * @returns {Seen}
   */
  #far(area, dark) {
    const { rows, columns, cells } = this.picture;
    const { queries, keys } = this.map;
    const [top, bottom, left, right] = area;
    const [high, broad] = [bottom - top, right - left];
    const most = roundShare(this.most);
    const cellIndex = (/** @type {number} */ query, /** @type {number} */ key) => cellOf(query, queries, rows) * columns + cellOf(key, keys, columns);
    /** @type {Seen["part"]} */
    let part = [0, 0, broad, high];
    if (high * broad <= BY_TOKEN) {
      const enlarged = new Float32Array(high * broad);
      for (let i = 0; i < enlarged.length; i++) enlarged[i] = Number(cells[cellIndex(top + Math.floor(i / broad), left + (i % broad))]);
      paintRaster(this.raster, { rows: high, columns: broad, cells: enlarged }, most, dark);
    } else {
      paintRaster(this.raster, this.picture, most, dark);
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
          area: [cellEdge(row, queries, rows), cellEdge(row + 1, queries, rows), cellEdge(column, keys, columns), cellEdge(column + 1, keys, columns)],
          share: Number(cells[row * columns + column]),
          exact: false,
        };
      },
    };
  }
}
