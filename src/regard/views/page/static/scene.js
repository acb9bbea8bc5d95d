/** What the view of the sentence shows of an attention: some heads, their rows and columns, and which lines to draw. */

import { tile } from "./attention.js";
import { headColour } from "./colour.js";
import { percent, visible } from "./dom.js";

/** @typedef {import("./data.js").Data} Data */
/** @typedef {import("./store.js").State} State */

/**
 * The token that the reader looks at: a query whose row is shown, or a key whose column is.
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
 * @property {import("./attention.js").Head} read
 */

/**
 * A weight to be drawn.
 * @typedef {object} Line
 * @property {number} head its place among those shown
 * @property {number} query
 * @property {number} key
 * @property {number} weight
 * @property {boolean} strong whether it belongs to the token that is looked at
 */

/** @typedef {[number, number]} Range the first, and the one behind the last */

/** So many lines are drawn at most. */
export const MOST_LINES = 1500;

/** So many products may be computed for the lines of other queries than the one that is looked at. */
const LINE_PRODUCTS = 2 ** 23;

/** So many weights are remembered. */
const SCENE_WEIGHTS = 2 ** 22;

/** Five patterns and eight colours: forty heads that differ. */
const HEAD_DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 8]];

/** @param {number} index among the heads that are shown */
export function headDash(index) {
  return /** @type {number[]} */ (HEAD_DASHES[index % HEAD_DASHES.length]);
}

export class Scene {
  /** @type {Map<string, Float64Array | Float32Array | null>} */
  #known = new Map();

  /**
   * @param {Data} data
   * @param {State} state
   */
  constructor(data, { attention: index, head, more }) {
    const attention = data.attention(index);
    this.data = data;
    this.index = index;
    this.tokens = data.tokens(index);
    this.first = attention.first;
    /** Whether queries and keys are tokens of one text. */
    this.same = attention.queryText === attention.keyText && attention.kind !== "cross";
    /** @type {ShownHead[]} */
    this.heads = [];
    /** @type {number[]} numbers of the heads that are a picture only */
    this.absent = [];
    [head, ...more.filter((each) => each !== head)].forEach((place, i) => {
      const { number } = data.about(index, place);
      const read = data.head(index, place);
      if (read) this.heads.push({ place, number, read, colour: headColour(i), dash: headDash(i) });
      else this.absent.push(number);
    });
    /** Of so many queries beside the one that is looked at the lines can be drawn without delay. */
    this.others = Math.floor(LINE_PRODUCTS / Math.max(1, attention.keys * attention.width * this.heads.length));
  }

  /**
   * The weights of a query; null where the page does not carry them.
   * @param {number} i which of the shown heads
   * @param {number} query
   */
  row(i, query) {
    const { place } = /** @type {ShownHead} */ (this.heads[i]);
    return this.#remember(`row ${place} ${query}`, () => this.data.row(this.index, place, query)?.weights ?? null);
  }

  /** Whether a query's row is in the page. @param {number} query */
  carries(query) {
    return this.heads.some(({ place }) => this.data.carries(this.index, place, query));
  }

  /** A query whose row is in the page; null where there is none. */
  carried() {
    const [head] = this.heads;
    return head ? (head.read.rows ? (head.read.rows[0] ?? null) : 0) : null;
  }

  /**
   * What each query gives to a key; NaN where its row is not carried; null where that would take long.
   * @param {number} i which of the shown heads
   * @param {number} key
   */
  column(i, key) {
    const { place, read } = /** @type {ShownHead} */ (this.heads[i]);
    return this.#remember(`column ${place} ${key}`, () => {
      if (read.lse) return tile(read, 0, read.queries, key, key + 1);
      const map = this.data.map(this.index, place);
      return map && Float32Array.from({ length: read.queries }, (_, query) => Number(map[query * read.keys + key]));
    });
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
   * The lines to draw: all of the focus, and those of other queries between tokens in sight.
   * @param {Focus} focus
   * @param {number} threshold
   * @param {Range} queries in sight
   * @param {Range} keys in sight
   */
  lines(focus, threshold, queries, keys) {
    /** @type {Line[]} */
    const found = [];
    const drawn = nearestPart(queries, focus.side === "query" ? focus.index : (queries[0] + queries[1]) >> 1, this.others);
    this.heads.forEach((_, head) => {
      for (let query = drawn[0]; query < drawn[1]; query++) {
        if (focus.side === "query" && query === focus.index) continue;
        const row = this.row(head, query);
        for (let key = keys[0]; row && key < keys[1]; key++) {
          const weight = Number(row[key]);
          const shown = weight > 0 && weight >= threshold && !(focus.side === "key" && key === focus.index);
          if (shown) found.push({ head, query, key, weight, strong: false });
        }
      }
      this.weights(head, focus)?.forEach((weight, other) => {
        if (!(weight > 0 && weight >= threshold)) return;
        const [query, key] = focus.side === "query" ? [focus.index, other] : [other, focus.index];
        found.push({ head, query, key, weight, strong: true });
      });
    });
    return strongestLines(found, MOST_LINES);
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
  said(focus, token) {
    const weights = this.heads.length ? this.weights(0, focus) : null;
    if (focus.side === token.side) {
      const what = this.name(token.side, token.index);
      if (focus.index !== token.index) return { text: what, share: null };
      if (!weights) return { text: `${what}: its weights are not in this page`, share: null };
      const [most] = strongestOf(weights, 1);
      if (!most) return { text: `${what}: all its weights are 0`, share: null };
      const other = this.name(token.side === "query" ? "key" : "query", most.index);
      return { text: `${what}: most ${token.side === "query" ? "to" : "from"} ${other}, ${percent(most.weight)}`, share: null };
    }
    const [query, key] = focus.side === "query" ? [focus, token] : [token, focus];
    const share = weights?.[token.index];
    if (share === undefined || Number.isNaN(share)) return { text: this.name(token.side, token.index), share: null };
    return { text: `${this.name("query", query.index)} gives ${percent(share)} to ${this.name("key", key.index)}`, share };
  }

  /**
   * @param {string} name
   * @param {() => Float64Array | Float32Array | null} make
   */
  #remember(name, make) {
    const old = this.#known.get(name);
    if (old !== undefined) return old;
    const { length } = this.tokens.keys;
    if (this.#known.size * length > SCENE_WEIGHTS) this.#known.clear();
    const made = make();
    this.#known.set(name, made);
    return made;
  }
}

/**
 * The largest weights, largest first; of equal ones the first. Weights of 0, and what is not known, do not count.
 * @param {ArrayLike<number>} weights
 * @param {number} most how many
 */
export function strongestOf(weights, most) {
  /** @type {{index: number, weight: number}[]} */
  const found = [];
  for (let index = 0; index < weights.length; index++) {
    const weight = Number(weights[index]);
    if (!(weight > 0) || (found.length === most && weight <= Number(found.at(-1)?.weight))) continue;
    let at = found.length;
    while (at > 0 && Number(found[at - 1]?.weight) < weight) at--;
    found.splice(at, 0, { index, weight });
    if (found.length > most) found.pop();
  }
  return found;
}

/**
 * The lines that are drawn when there are too many, weakest first, those of the focus on top; and how many are not.
 * @param {Line[]} found
 * @param {number} most
 */
export function strongestLines(found, most) {
  const sorted = found.sort((a, b) => Number(a.strong) - Number(b.strong) || a.weight - b.weight);
  const left = Math.max(0, sorted.length - most);
  return { lines: sorted.slice(left), left };
}

/**
 * The part of a range, of so many at most, that lies nearest to one of its members.
 * @param {Range} range
 * @param {number} centre
 * @param {number} most
 * @returns {Range}
 */
export function nearestPart([from, to], centre, most) {
  if (to - from <= most) return [from, to];
  const start = Math.min(Math.max(from, centre - (most >> 1)), to - most);
  return [start, start + most];
}

/**
 * A token in a sentence that is read aloud: 'bank'. Long ones are cut.
 * @param {string} text
 */
export function quotedToken(text) {
  const letters = [...visible(text.slice(0, 200))];
  return `'${letters.length > 40 ? `${letters.slice(0, 40).join("")}…` : letters.join("")}'`;
}
