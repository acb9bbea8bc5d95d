/** The drawing of a map on the screen: painted when its area changes, and marked when the cursor moves. */

import { isDark, shade } from "../core/colour.js";
import { make, visible } from "../core/dom.js";
import { laidOut, pointIn } from "./layout.js";
import { paintFrame, paintHatching } from "./mapmarks.js";
import { paintCells, paintMargins, paintNames, paintNumbers, sharpened } from "./mappaint.js";
import { marginsOf } from "./margins.js";
import { Sight } from "./mapsight.js";
import { contrast, largestOf } from "./raster.js";

/** @typedef {import("./area.js").Area} Area */
/** @typedef {import("../core/data.js").Data} Data */
/** @typedef {{query: number, key: number}} Pair */

/** So many heads that were looked at keep their weights, for going back and forth. */
const SIGHTS = 4;

/** The longest of many tokens is among so many that have the most characters. */
const MEASURED = 24;

/** @type {import("./mappaint.js").Inks} */
const INKS_ON_PAPER = { ink: "#000000", quiet: "#444444", line: "#999999", accent: "#0b5cad", paper: "#ffffff" };

export class MapScreen {
  canvas = make("canvas", { "aria-hidden": "true" });
  marks = make("canvas", { class: "marks" });
  /** @type {import("./layout.js").Layout | null} */
  layout = null;
  /** @type {import("./mapsight.js").Seen | null} */
  seen = null;
  missing = 0;
  numbered = false;
  dark = false;
  /** @type {Map<string, Sight>} */
  #sights = new Map();
  /** @type {Sight | null} */
  #sight = null;
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

  /** What is looked at. */
  get sight() {
    return /** @type {Sight} */ (this.#sight);
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
  turn(index, head) {
    const name = `${index}.${head}`;
    const sight = this.#sights.get(name) ?? new Sight(this.data, index, head);
    this.#sights.delete(name);
    this.#sights.set(name, sight);
    for (const old of [...this.#sights.keys()].slice(0, -SIGHTS)) this.#sights.delete(old);
    this.#sight = sight;
    [this.#index, this.#head] = [index, head];
    this.#tokens = this.data.tokens(index);
    this.#longest = { queries: this.#widest(this.#tokens.queries), keys: this.#widest(this.#tokens.keys) };
    this.#margins = null;
  }

  /**
   * Paints an area.
   * @param {Area} area
   * @param {number} width there is, in CSS pixels
   * @param {number} most height of the cells
   * @param {boolean} paper whether it is printed
   */
  paint(area, width, most, paper) {
    const sight = this.sight;
    const layout = laidOut(width, most, area, sight.map, this.#longest);
    const pen = sharpened(this.canvas, layout.width, layout.height);
    if (!pen) return;
    const inks = paper ? INKS_ON_PAPER : this.#inks();
    const sharp = window.devicePixelRatio || 1;
    this.dark = isDark() && !paper;
    const seen = sight.see(area, { wide: layout.wide * sharp, tall: layout.tall * sharp }, this.dark);
    [this.layout, this.seen] = [layout, seen];
    const { whole } = sight;
    if (!this.#margins || (this.#margins.rough && whole)) {
      this.#margins = marginsOf(this.data, this.#index, this.#head, whole);
      this.#largest = { entropy: largestOf(this.#margins.entropy ?? []), received: largestOf(this.#margins.received) };
    }
    paintCells(pen, layout, sight.raster, seen.part, inks);
    const exact = seen.from === "exact";
    this.missing = exact ? paintHatching(pen, layout, (query) => sight.carries(query), inks.quiet) : 0;
    const single = (exact && seen.tall * seen.wide === 1) || (sight.picture.rows === sight.map.queries && sight.picture.columns === sight.map.keys);
    this.numbered = single && paintNumbers(pen, layout, (query, key) => seen.cell(query, key).share, (weight) => this.#inkOn(weight, seen.top));
    paintNames(pen, layout, this.#tokens, inks);
    paintMargins(pen, layout, this.#margins, this.#largest, inks);
  }

  /**
   * Marks the chosen pair and the one under the cursor.
   * @param {Pair | null} chosen
   * @param {Pair | null} cursor
   */
  mark(chosen, cursor) {
    const { layout, seen } = this;
    const pen = layout && sharpened(this.marks, layout.width, layout.height);
    if (!layout || !seen || !pen) return;
    const inks = this.#inks();
    if (chosen) paintFrame(pen, layout, [chosen.query, chosen.query + 1, chosen.key, chosen.key + 1], inks, false);
    if (cursor) paintFrame(pen, layout, seen.cell(cursor.query, cursor.key).area, inks, true);
  }

  /**
   * The pair under a spot; null outside of the cells.
   * @param {{x: number, y: number}} spot
   */
  pair(spot) {
    const found = this.layout && pointIn(this.layout, spot.x, spot.y);
    return found && { query: Math.floor(found.query), key: Math.floor(found.key) };
  }

  /** @param {string[]} texts */
  #widest(texts) {
    const pen = this.canvas.getContext("2d");
    const longest = texts.length > MEASURED ? [...texts].sort((a, b) => b.length - a.length).slice(0, MEASURED) : texts;
    if (pen) pen.font = "12px system-ui, sans-serif";
    return Math.max(...longest.map((text) => pen?.measureText(visible(text)).width ?? 0));
  }

  /** @returns {import("./mappaint.js").Inks} */
  #inks() {
    const style = getComputedStyle(this.canvas);
    const read = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim() || "#888888";
    return { ink: read("ink"), quiet: read("quiet"), line: read("line"), accent: read("accent"), paper: read("paper") };
  }

  /**
   * Black or white, what stands out more from a weight's colour.
   * @param {number} weight
   * @param {number} top
   */
  #inkOn(weight, top) {
    const [red, green, blue] = shade(contrast(weight, top), this.dark);
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#101318" : "#ffffff";
  }
}
