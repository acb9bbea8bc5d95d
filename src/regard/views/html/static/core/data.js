/** What a page carries: the facts of every attention, and the numbers that its rows are computed from. */

import { steps, tile } from "./attention.js";
import { arrayOf, bytesOf, unpacked } from "./codec.js";

/** @typedef {import("./codec.js").Ref} Ref */
/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./attention.js").Steps} Steps */

/**
 * One head, as it is listed.
 * @typedef {object} HeadFacts
 * @property {number} number in the model
 * @property {string} kind "previous token", ..., "mixed"
 * @property {Record<string, number | null>} scores how much of each kind it has, 0 to 1
 * @property {number} entropy in nats, on average over the queries
 * @property {number | null} distance how far back it looks, on average; null between two texts
 * @property {number | null} sink its share on the first token
 * @property {{query: number, key: number, weight: number}[]} pairs the largest weights between two tokens of the text
 * @property {Ref} picture the map in cells, each relative to `most`, and as a square root
 * @property {number} most the largest cell
 * @property {Carried | null} carried what its rows are computed from; null where the picture is all there is
 */

/**
 * @typedef {object} Carried
 * @property {Ref} q
 * @property {number} kv which of the attention's keys and values are the head's
 * @property {Ref | null} rows
 * @property {Ref | null} lse
 * @property {Ref | null} entropy of each query
 * @property {Ref | null} received by each key
 * @property {number | null} sink
 * @property {Ref | null} bias by key number - query number, from -(queries - 1) on; or of each pair
 * @property {Ref | null} bits whether a query may attend to a key, of each pair
 */

/**
 * @typedef {object} Attention
 * @property {string} path of its module
 * @property {string} group its name in the list of attentions: "encoder", "decoder", "cross"
 * @property {string} kind "self" or "cross"
 * @property {number} layer
 * @property {number} queries
 * @property {number} keys
 * @property {number} first position of query 0 among the keys
 * @property {number} queryText number of the text whose tokens are the queries
 * @property {number} keyText
 * @property {string} mask in words
 * @property {string} kernel
 * @property {number | null} error largest difference of weights @ v from the model's own output, relative
 * @property {boolean} verified
 * @property {number} within how far the weights that the page computes are from the exact ones, at most
 * @property {number} scale
 * @property {number | null} softcap
 * @property {number} dropout
 * @property {number} width
 * @property {number} valueWidth
 * @property {Ref | null} low of each query: the first key that it may attend to
 * @property {Ref | null} high the key behind the last
 * @property {{k: Ref, v: Ref | null}[]} kv the keys and values that heads share or have
 * @property {HeadFacts[]} heads
 */

/**
 * @typedef {object} Facts
 * @property {string} title
 * @property {string} model
 * @property {string} made by which regard
 * @property {{tokens: string[]}[]} texts
 * @property {Attention[]} attentions
 * @property {string[]} notes
 * @property {string[]} left what was left out, and how to get it
 * @property {{attention: number, head: number, query: number}} open what is shown first
 * @property {number} shorts how many numbers of 16 bits the page begins with
 * @property {Image | null} image
 * @property {Context | null} context
 */

/**
 * An image whose patches are the tokens.
 * @typedef {object} Image
 * @property {string} source a data: address
 * @property {number} rows of patches
 * @property {number} columns
 * @property {number} first the token that is the first patch
 * @property {number[]} attentions those whose keys are the patches
 */

/**
 * What becomes of words in several sentences. "At each state" is at the input and after each layer.
 * @typedef {object} Context
 * @property {ContextPart[][]} sentences each cut into parts, which are together its text
 * @property {ContextWord[]} words of at least two sentences, the one to begin with first
 * @property {ContextWord[]} other_words words of one sentence: no cosines, a point to each state
 * @property {number} num_shared how many words stand in at least two; of many, those that change most are carried
 * @property {number[]} explained_variance which share of all differences between the vectors the plane shows, at each state
 * @property {number} num_layers
 */

/**
 * @typedef {object} ContextPart
 * @property {string} text
 * @property {number | null} word its place among the words, where it is one of them
 */

/**
 * @typedef {object} ContextWord
 * @property {string} word
 * @property {{sentence: number, cosine: number[]}[]} cosines with its vector in the first sentence that it stands in, at each state
 * @property {([number, number][] | null)[]} points for each sentence, at each state: where its vector stands in the plane
 *   in which the words of all sentences differ most; null for a sentence that it does not stand in
 */

/** Rows are remembered of so many keys together. */
const REMEMBERED = 2 ** 18;

/** A whole map has at most so many weights. */
export const WHOLE = 2 ** 22;

export class Data {
  /** @type {Map<string, Head | null>} */
  #heads = new Map();
  /** @type {Map<string, Steps>} */
  #rows = new Map();
  /** @type {Map<string, Float32Array>} */
  #maps = new Map();

  /**
   * @param {Facts} facts
   * @param {Uint8Array} numbers
   */
  constructor(facts, numbers) {
    this.facts = facts;
    this.numbers = numbers;
  }

  /**
   * Reads what the page carries.
   * @param {Document} page
   */
  static async read(page) {
    const [facts, numbers] = await Promise.all(["facts", "numbers"].map((id) => carriedBy(page, id)));
    return new Data(JSON.parse(new TextDecoder().decode(facts)), /** @type {Uint8Array} */ (numbers));
  }

  /** @param {number} index */
  attention(index) {
    return known(this.facts.attentions[index], `attention ${index}`);
  }

  /**
   * The facts of a head.
   * @param {number} index of the attention
   * @param {number} head its place among the attention's
   */
  about(index, head) {
    return known(this.attention(index).heads[head], `head ${head}`);
  }

  /**
   * The tokens of an attention's two sides, as they are shown.
   * @param {number} index
   */
  tokens(index) {
    const { queryText, keyText, queries } = this.attention(index);
    const keys = this.shown(keyText);
    const read = this.shown(queryText);
    return { queries: read.slice(read.length - queries), keys };
  }

  /** @param {number} text */
  shown(text) {
    return known(this.facts.texts[text], `text ${text}`).tokens;
  }

  /**
   * What a head's rows are computed from; null where the page carries its picture alone.
   * @param {number} index
   * @param {number} head
   * @returns {Head | null}
   */
  head(index, head) {
    return remember(this.#heads, `${index}.${head}`, 64, () => {
      const { carried } = this.about(index, head);
      return carried && this.#read(this.attention(index), carried);
    });
  }

  /**
   * Every step of a row as the model computed it; null where it is not carried.
   * @param {number} index
   * @param {number} head
   * @param {number} query
   */
  row(index, head, query) {
    const read = this.head(index, head);
    if (!read || !this.carries(index, head, query)) return null;
    return remember(this.#rows, `${index}.${head}.${query}`, Math.max(4, REMEMBERED / read.keys), () => steps(read, query));
  }

  /**
   * Whether a row can be computed here.
   * @param {number} index
   * @param {number} head
   * @param {number} query
   */
  carries(index, head, query) {
    const read = this.head(index, head);
    return read !== null && (read.rows === null || read.rows.includes(query));
  }

  /**
   * Every weight of a head; null where they are too many or not carried.
   * @param {number} index
   * @param {number} head
   */
  map(index, head) {
    const { queries, keys } = this.attention(index);
    const read = this.head(index, head);
    if (!read || read.rows || queries * keys > WHOLE) return null;
    return remember(this.#maps, `${index}.${head}`, 16, () => tile(read, 0, queries, 0, keys));
  }

  /**
   * The map as a picture: each cell is the sum of the weights in it, divided by the number of its queries.
   * @param {number} index
   * @param {number} head
   */
  picture(index, head) {
    const { picture, most } = this.about(index, head);
    const [rows = 0, columns = 0] = picture.shape;
    return { rows, columns, cells: this.array(picture).map((root) => root * root * most) };
  }

  /** @param {Ref} ref */
  array(ref) {
    return arrayOf(this.numbers, this.facts.shorts, ref);
  }

  /**
   * @param {Attention} attention
   * @param {Carried} carried
   * @returns {Head}
   */
  #read(attention, carried) {
    const { queries, keys, width, valueWidth, scale, softcap } = attention;
    const { k, v } = known(attention.kv[carried.kv], "keys and values");
    const low = attention.low && this.array(attention.low);
    const high = attention.high && this.array(attention.high);
    const bits = carried.bits && this.array(carried.bits);
    const bias = carried.bias && this.array(carried.bias);
    const square = carried.bias?.shape.length === 2;
    return {
      q: this.array(carried.q),
      k: this.array(k),
      v: v && this.array(v),
      width,
      valueWidth,
      queries,
      keys,
      rows: carried.rows && this.array(carried.rows),
      lse: carried.lse && this.array(carried.lse),
      scale,
      softcap,
      sink: carried.sink,
      bias: bias && ((query, key) => Number(bias[square ? query * keys + key : key - query + queries - 1])),
      may: bits
        ? (query, key) => bits[query * keys + key] === 1
        : low && high && ((query, key) => key >= Number(low[query]) && key < Number(high[query])),
    };
  }
}

/**
 * @param {Document} page
 * @param {string} id
 */
async function carriedBy(page, id) {
  const found = page.getElementById(id);
  if (!found) throw new Error(`this page has lost its ${id}: write it anew`);
  return unpacked(bytesOf(found.textContent ?? ""), Number(found.dataset.bytes));
}

/**
 * @template Value
 * @param {Map<string, Value>} memory
 * @param {string} key
 * @param {number} most
 * @param {() => Value} make
 * @returns {Value}
 */
function remember(memory, key, most, make) {
  const old = memory.get(key);
  if (old !== undefined) return old;
  const made = make();
  const [oldest] = memory.keys();
  if (memory.size >= most && oldest !== undefined) memory.delete(oldest);
  memory.set(key, made);
  return made;
}

/**
 * @template Value
 * @param {Value | undefined} value
 * @param {string} name
 * @returns {Value}
 */
function known(value, name) {
  if (value === undefined) throw new RangeError(`there is no ${name} in this page`);
  return value;
}
