/** The drawing of a map on the screen: painted when its area changes, and marked when the cursor moves. */

import { isDark, rampColour } from "../core/colour.js";
import { element } from "../core/dom.js";
import { mapLayout, tokenAt } from "./layout.js";
import { paintFrame, paintHatching } from "./overlay.js";
import { paintCells, paintMargins, paintNames, paintNumbers, prepareCanvas, readPalette, widestName } from "./paint.js";
import { computeMargins } from "./margins.js";
import { WeightSource } from "./source.js";
import { colourShare, maxOf } from "./raster.js";

/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {import("../core/data.js").Data} Data */
/** @typedef {{query: number, key: number}} Pair */

/** The number of heads whose weights stay in memory. */
const CACHED_SOURCES = 4;

/** @type {import("./paint.js").Palette} */
const PRINT_PALETTE = { ink: "#000000", quiet: "#444444", line: "#999999", accent: "#0b5cad", paper: "#ffffff" };

export class MapCanvas {
  canvas = element("canvas", { "aria-hidden": "true" });
  marks = element("canvas", { class: "marks" });
  /** @type {import("./layout.js").Layout | null} */
  layout = null;
  /** @type {import("./source.js").PaintedView | null} */
  view = null;
  missing = 0;
  numbered = false;
  dark = false;
  /** @type {Map<string, WeightSource>} */
  #sources = new Map();
  /** @type {WeightSource | null} */
  #source = null;
  /** @type {import("./margins.js").Margins | null} */
  #margins = null;
  #largest = { entropy: 0, received: 0 };
  #longest = { queries: 0, keys: 0 };
  #tokens = { queries: /** @type {string[]} */ ([]), keys: /** @type {string[]} */ ([]) };
  #index = 0;
  #head = 0;

  /** @param {Data} data */
  constructor(data) {
    this.data = data;
  }

  /** The weights of the selected head. */
  get source() {
    return /** @type {WeightSource} */ (this.#source);
  }

  get margins() {
    return this.#margins;
  }

  /** The largest mean entropy and share received. */
  get largest() {
    return this.#largest;
  }

  /**
   * Turns to a head.
   * @param {number} index of the attention
   * @param {number} head
   */
  selectHead(index, head) {
    const name = `${index}.${head}`;
    const source = this.#sources.get(name) ?? new WeightSource(this.data, index, head);
    this.#sources.delete(name);
    this.#sources.set(name, source);
    for (const old of [...this.#sources.keys()].slice(0, -CACHED_SOURCES)) this.#sources.delete(old);
    this.#source = source;
    [this.#index, this.#head] = [index, head];
    this.#tokens = this.data.tokens(index);
    this.#longest = { queries: widestName(this.canvas, this.#tokens.queries), keys: widestName(this.canvas, this.#tokens.keys) };
    this.#margins = null;
  }

  /**
   * Paints an area.
   * @param {Viewport} viewport
   * @param {number} width there is, in CSS pixels
   * @param {number} most height of the cells
   * @param {boolean} printing whether it is printed
   */
  paint(viewport, width, most, printing) {
    const source = this.source;
    const layout = mapLayout(width, most, viewport, source.map, this.#longest);
    const ctx = prepareCanvas(this.canvas, layout.width, layout.height);
    if (!ctx) return;
    const palette = printing ? PRINT_PALETTE : readPalette(this.canvas);
    const sharp = window.devicePixelRatio || 1;
    this.dark = isDark() && !printing;
    const view = source.paint(viewport, { wide: layout.wide * sharp, tall: layout.tall * sharp }, this.dark);
    [this.layout, this.view] = [layout, view];
    const { allWeights } = source;
    if (!this.#margins || (this.#margins.approximate && allWeights)) {
      this.#margins = computeMargins(this.data, this.#index, this.#head, allWeights);
      this.#largest = { entropy: maxOf(this.#margins.entropy ?? []), received: maxOf(this.#margins.received) };
    }
    paintCells(ctx, layout, source.raster, view.part, palette);
    const exact = view.from === "exact";
    this.missing = exact ? paintHatching(ctx, layout, (query) => source.hasRow(query), palette.quiet) : 0;
    const single = (exact && view.tall * view.wide === 1) || (source.pooledMap.rows === source.map.queries && source.pooledMap.columns === source.map.keys);
    this.numbered = single && paintNumbers(ctx, layout, (query, key) => view.cell(query, key).share, (weight) => this.#textColour(weight, view.top));
    paintNames(ctx, layout, this.#tokens, palette);
    paintMargins(ctx, layout, this.#margins, this.#largest, palette);
  }

  /**
   * Marks the chosen pair and the one under the cursor.
   * @param {Pair | null} chosen
   * @param {Pair | null} cursor
   */
  mark(chosen, cursor) {
    const { layout, view } = this;
    const ctx = layout && prepareCanvas(this.marks, layout.width, layout.height);
    if (!layout || !view || !ctx) return;
    const palette = readPalette(this.canvas);
    if (chosen) paintFrame(ctx, layout, [chosen.query, chosen.query + 1, chosen.key, chosen.key + 1], palette, false);
    if (cursor) paintFrame(ctx, layout, view.cell(cursor.query, cursor.key).viewport, palette, true);
  }

  /**
   * The pair under a spot; null outside of the cells.
   * @param {{x: number, y: number}} spot
   */
  pair(spot) {
    const token = this.layout && tokenAt(this.layout, spot.x, spot.y);
    return token && { query: Math.floor(token.query), key: Math.floor(token.key) };
  }

  /**
   * Black or white, whichever is easier to read on the colour of a weight.
   * @param {number} weight
   * @param {number} top
   */
  #textColour(weight, top) {
    const [red, green, blue] = rampColour(colourShare(weight, top), this.dark);
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#101318" : "#ffffff";
  }
}
