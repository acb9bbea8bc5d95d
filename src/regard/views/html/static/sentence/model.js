/** The data of the sentence view: the shown heads, their rows and columns, and the lines to draw. */

import { tile } from "../core/attention.js";
import { headColour } from "../core/colour.js";
import { percentText, visible } from "../core/dom.js";
import { nearestRange, topLines, topWeights } from "./topk.js";
import { rowLse } from "./lse.js";

/** @typedef {import("../core/data.js").Data} Data */
/** @typedef {import("../core/store.js").State} State */

/**
 * The token in focus: a query with its row, or a key with its column.
 * @typedef {object} Focus
 * @property {"query" | "key"} side
 * @property {number} index
 */

/**
 * A head that is drawn.
 * @typedef {object} ShownHead
 * @property {number} place among the attention's heads
 * @property {number} number in the model
 * @property {string} colour
 * @property {number[]} dash so that the colour is not alone
 * @property {import("../core/attention.js").Head} read
 */

/**
 * A weight to be drawn.
 * @typedef {object} Line
 * @property {number} head its place among those shown
 * @property {number} query
 * @property {number} key
 * @property {number} weight
 */

/** @typedef {import("./topk.js").Range} Range */

/** The most lines that are drawn. */
export const MAX_LINES = 1500;

/** The most products that are computed for the lines of queries other than the focus. */
const MAX_LINE_PRODUCTS = 2 ** 23;

/** The log-sum-exp of the rows of a map with at most this many weights is computed in advance, for its columns. */
const MAX_EAGER_WEIGHTS = 2 ** 20;

/** The most weights in the cache. */
const CACHED_WEIGHTS = 2 ** 22;

/** Five patterns and eight colours: forty heads that differ. */
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 8]];

/** @param {number} index among the heads that are shown */
export function headDash(index) {
  return /** @type {number[]} */ (DASHES[index % DASHES.length]);
}

export class SentenceModel {
  /** @type {Map<string, Float64Array | Float32Array | null>} */
  #cache = new Map();

  /**
   * @param {Data} data
   * @param {State} state
   * @param {() => void} onReady called when columns can be shown that could not before
   */
  constructor(data, { attention: index, head, extraHeads }, onReady) {
    const attention = data.attention(index);
    this.data = data;
    this.index = index;
    this.onReady = onReady;
    this.tokens = data.tokens(index);
    this.queryOffset = attention.query_offset;
    /** Whether queries and keys are tokens of one text. */
    this.sameText = attention.query_text === attention.key_text && attention.kind !== "cross";
    /** @type {ShownHead[]} */
    this.heads = [];
    /** @type {number[]} numbers of the heads that are a picture only */
    this.missingHeads = [];
    [head, ...extraHeads.filter((each) => each !== head)].forEach((place, i) => {
      const { number } = data.headFacts(index, place);
      const read = data.head(index, place);
      if (read) this.heads.push({ place, number, read, colour: headColour(i), dash: headDash(i) });
      else this.missingHeads.push(number);
    });
    /** The number of other queries whose lines can be drawn without delay. */
    this.maxOtherQueries = Math.floor(MAX_LINE_PRODUCTS / Math.max(1, attention.keys * attention.d_key * this.heads.length));
    if (attention.queries * attention.keys <= MAX_EAGER_WEIGHTS) for (const { read } of this.heads) rowLse(read, onReady);
  }

  /**
   * The weights of a query; null where the page does not carry them.
   * @param {number} i which of the shown heads
   * @param {number} query
   */
  row(i, query) {
    const { place } = /** @type {ShownHead} */ (this.heads[i]);
    return this.#remember(`row ${i} ${query}`, () => this.data.row(this.index, place, query)?.weights ?? null);
  }

  /** Whether a query's row is in the page. @param {number} query */
  hasRow(query) {
    return this.heads.some(({ place }) => this.data.hasRow(this.index, place, query));
  }

  /** A query whose row is in the page; null where there is none. */
  firstQueryWithRow() {
    const [head] = this.heads;
    return head ? (head.read.rows ? (head.read.rows[0] ?? null) : 0) : null;
  }

  /**
   * What each query gives to a key; NaN where its row is not carried; null until the log-sum-exp of the rows is computed.
   * @param {number} i which of the shown heads
   * @param {number} key
   */
  column(i, key) {
    const { read } = /** @type {ShownHead} */ (this.heads[i]);
    const lse = rowLse(read, this.onReady);
    return lse && this.#remember(`column ${i} ${key}`, () => tile({ ...read, lse }, 0, read.queries, key, key + 1));
  }

  /**
   * The weights that a focus shows: of a query to all keys, of all queries to a key.
   * @param {number} i which of the shown heads
   * @param {Focus} focus
   */
  weights(i, { side, index }) {
    return side === "query" ? this.row(i, index) : this.column(i, index);
  }

  /**
   * The lines of one token, strongest last.
   * @param {Focus} focus
   * @param {number} threshold
   */
  focusLines(focus, threshold) {
    /** @type {Line[]} */
    const lines = [];
    this.heads.forEach((_, head) =>
      this.weights(head, focus)?.forEach((weight, other) => {
        const [query, key] = focus.side === "query" ? [focus.index, other] : [other, focus.index];
        if (weight > 0 && weight >= threshold) lines.push({ head, query, key, weight });
      }),
    );
    return topLines(lines, MAX_LINES);
  }

  /**
   * The lines between tokens in sight, strongest last.
   * @param {number} threshold
   * @param {Range} queries in sight
   * @param {Range} keys in sight
   */
  backgroundLines(threshold, queries, keys) {
    /** @type {Line[]} */
    const lines = [];
    const [from, to] = nearestRange(queries, (queries[0] + queries[1]) >> 1, this.maxOtherQueries);
    this.heads.forEach((_, head) => {
      for (let query = from; query < to; query++) {
        const row = this.row(head, query);
        for (let key = keys[0]; row && key < keys[1]; key++) {
          const weight = Number(row[key]);
          if (weight > 0 && weight >= threshold) lines.push({ head, query, key, weight });
        }
      }
    });
    return topLines(lines, MAX_LINES);
  }

  /**
   * A token with its number, as it is said: query 7 'bank'.
   * @param {"query" | "key"} side
   * @param {number} index
   */
  name(side, index) {
    return `${side} ${index} ${quotedToken(this.tokens[side === "query" ? "queries" : "keys"][index] ?? "")}`;
  }

  /**
   * What is said of a token beside the focus: what the one gives to the other, in the first head.
   * @param {Focus} focus
   * @param {Focus} token
   * @returns {{text: string, share: number | null}}
   */
  describe(focus, token) {
    const weights = this.heads.length ? this.weights(0, focus) : null;
    if (focus.side === token.side) {
      const name = this.name(token.side, token.index);
      if (focus.index !== token.index) return { text: name, share: null };
      if (!weights) return { text: `${name}: its weights are not in this page`, share: null };
      const [strongest] = topWeights(weights, 1);
      if (!strongest) return { text: `${name}: all its weights are 0`, share: null };
      const other = this.name(token.side === "query" ? "key" : "query", strongest.index);
      return { text: `${name}: most ${token.side === "query" ? "to" : "from"} ${other}, ${percentText(strongest.weight)}`, share: null };
    }
    const [query, key] = focus.side === "query" ? [focus, token] : [token, focus];
    const share = weights?.[token.index];
    if (share === undefined || Number.isNaN(share)) return { text: this.name(token.side, token.index), share: null };
    return { text: `${this.name("query", query.index)} gives ${percentText(share)} to ${this.name("key", key.index)}`, share };
  }

  /**
   * @param {string} name
   * @param {() => Float64Array | Float32Array | null} element
   */
  #remember(name, element) {
    const old = this.#cache.get(name);
    if (old !== undefined) return old;
    const { length } = this.tokens.keys;
    if (this.#cache.size * length > CACHED_WEIGHTS) this.#cache.clear();
    const value = element();
    this.#cache.set(name, value);
    return value;
  }
}

/**
 * A token in a sentence that is read aloud: 'bank'. Long ones are cut.
 * @param {string} text
 */
export function quotedToken(text) {
  const letters = [...visible(text.slice(0, 200))];
  return `'${letters.length > 40 ? `${letters.slice(0, 40).join("")}…` : letters.join("")}'`;
}
