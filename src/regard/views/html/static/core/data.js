/** The data of a page: the facts of every attention, and the numbers from which its rows are computed. */

import { steps, tile } from "./attention.js";
import { decodeArray, decodeSevenBits, gunzip } from "./codec.js";

/** @typedef {import("./codec.js").Ref} Ref */
/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./attention.js").Steps} Steps */

/**
 * The facts of a head.
 * @typedef {object} HeadFacts
 * @property {number} number in the model
 * @property {string} head_type "previous token", ..., "mixed"
 * @property {Record<string, number | null>} head_type_scores the score for each type, 0 to 1
 * @property {number} entropy in nats, on average over the queries
 * @property {number | null} distance from a query back to its keys, on average; null between two texts
 * @property {number | null} first_token_share the attention that the first token receives, on average
 * @property {{query: number, key: number, weight: number}[]} pairs the largest weights between two tokens of the text
 * @property {Ref} pooled the pooled map: the square root of each cell relative to `max_pooled`
 * @property {number} max_pooled the largest cell of the pooled map
 * @property {Payload | null} payload what its rows are computed from; null where the page has the pooled map only
 */

/**
 * @typedef {object} Payload
 * @property {Ref} q
 * @property {number} kv_head the index of its keys and values in `kv_heads`
 * @property {Ref | null} rows the queries that have a row; null: all
 * @property {Ref | null} lse of each row: the log-sum-exp of its scores
 * @property {Ref | null} entropy of each query
 * @property {Ref | null} received by each key
 * @property {number | null} sink the score of the head's own sink
 * @property {Ref | null} bias by key number - query number, from -(queries - 1) on; or of each pair
 * @property {Ref | null} allowed whether a query may attend to a key, of each pair
 */

/**
 * @typedef {object} Attention
 * @property {string} path of its module
 * @property {string} group its name in the list of attentions: "encoder", "decoder", "cross"
 * @property {string} kind "self" or "cross"
 * @property {number} layer
 * @property {number} queries
 * @property {number} keys
 * @property {number} query_offset position of query 0 among the keys
 * @property {number} query_text index of the text whose tokens are the queries
 * @property {number} key_text
 * @property {string} mask in words
 * @property {string} kernel
 * @property {number | null} max_error the largest difference of weights @ v from the model's own output, relative
 * @property {boolean} verified
 * @property {boolean} [computed_here] whether the page's own model computed it: nothing is rounded
 * @property {number} max_weight_error the largest difference between the weights that the page computes and the exact ones
 * @property {number} scale
 * @property {number | null} softcap
 * @property {number} dropout
 * @property {number} d_key
 * @property {number} d_value
 * @property {Ref | null} first_key of each query: the first key that it may attend to
 * @property {Ref | null} end_key the key after the last
 * @property {{k: Ref, v: Ref | null}[]} kv_heads keys and values; several heads may share them
 * @property {HeadFacts[]} heads
 * @property {PatchGrid | null} query_patches those of the queries that are patches of the image; null: none is known to be one
 * @property {PatchGrid | null} key_patches
 */

/**
 * @typedef {object} Facts
 * @property {string} title
 * @property {string} model
 * @property {string} generator the version of regard
 * @property {{tokens: string[]}[]} texts
 * @property {Attention[]} attentions
 * @property {string[]} notes
 * @property {string[]} omitted what the page omits, and how to get it
 * @property {{attention: number, head: number, query: number}} initial what the page shows first
 * @property {number} num_int16 the number of 16-bit integers, with which the numbers begin
 * @property {Image | null} image
 * @property {Context | null} context
 * @property {EffectFacts[]} effects
 * @property {string | null} view the view that opens first; null: the sentence
 */

/**
 * What mattered to a metric, beside what was looked at.
 * @typedef {object} EffectFacts
 * @property {"heads" | "layers" | "tokens" | "edges"} over
 * @property {string} metric
 * @property {string} ablation in words
 * @property {string} method how effects were computed, in words
 * @property {string | null} looked_at which attention that is, in words; null: none is known
 * @property {number | null} baseline the metric of the model as it is
 * @property {number} num_texts over how many texts this is the mean
 * @property {string} summary the sentence that holds attention against effect
 * @property {string[]} notes
 * @property {number | null} text index of the text whose tokens the parts are; null where they are no tokens
 * @property {boolean} has_exact whether effects were computed exactly, at least some
 * @property {boolean} has_estimates whether there are first-order estimates
 * @property {EffectPart[]} parts the strongest, in the order of the model or of the text
 * @property {number} num_parts how many there are in all
 */

/**
 * A head, a layer, a token or an edge. Its effect is the metric of the model minus the metric without it.
 * @typedef {object} EffectPart
 * @property {string} name such as 24.4, layer 24 and head 4
 * @property {number | null} attention its place in the page; null where the page does not have it
 * @property {number | null} head its place among the attention's; null for what is no head
 * @property {number | null} token its position, for tokens
 * @property {number | null} effect null where it was not computed exactly
 * @property {number | null} estimate of the effect, to first order
 * @property {number | null} looked_at
 */

/**
 * An image whose patches are queries or keys.
 * @typedef {object} Image
 * @property {string} source a data: address
 */

/**
 * The tokens that are patches of the image: first + row * stride + column.
 * @typedef {object} PatchGrid
 * @property {number} first the token of the patch at row 0, column 0
 * @property {number} rows
 * @property {number} columns
 * @property {number} stride tokens from a patch to the one below
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

/** The most keys of the cached rows together. */
const CACHED_KEYS = 2 ** 18;

/** The most weights of a map that is computed whole. */
export const MAX_EXACT_WEIGHTS = 2 ** 22;

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
   * Reads the data of a page.
   * @param {Document} page
   */
  static async read(page) {
    const [facts, numbers] = await Promise.all(["facts", "numbers"].map((id) => readEncoded(page, id)));
    return new Data(JSON.parse(new TextDecoder().decode(facts)), /** @type {Uint8Array} */ (numbers));
  }

  /** @param {number} index */
  attention(index) {
    return required(this.facts.attentions[index], `attention ${index}`);
  }

  /**
   * The facts of a head.
   * @param {number} index of the attention
   * @param {number} head its place among the attention's
   */
  headFacts(index, head) {
    return required(this.attention(index).heads[head], `head ${head}`);
  }

  /**
   * The tokens of an attention's two sides, as they are shown.
   * @param {number} index
   */
  tokens(index) {
    const { query_text: queryText, key_text: keyText, queries } = this.attention(index);
    const tokens = this.textTokens(queryText);
    return { queries: tokens.slice(tokens.length - queries), keys: this.textTokens(keyText) };
  }

  /** @param {number} text */
  textTokens(text) {
    return required(this.facts.texts[text], `text ${text}`).tokens;
  }

  /**
   * What a head's rows are computed from; null where the page has the pooled map only.
   * @param {number} index
   * @param {number} head
   * @returns {Head | null}
   */
  head(index, head) {
    return cached(this.#heads, `${index}.${head}`, 64, () => {
      const { payload } = this.headFacts(index, head);
      return payload && this.#decode(this.attention(index), payload);
    });
  }

  /**
   * Every step of a row as the model computed it; null where it is not in the page.
   * @param {number} index
   * @param {number} head
   * @param {number} query
   */
  row(index, head, query) {
    const decoded = this.head(index, head);
    if (!decoded || !this.hasRow(index, head, query)) return null;
    return cached(this.#rows, `${index}.${head}.${query}`, Math.max(4, CACHED_KEYS / decoded.keys), () => steps(decoded, query));
  }

  /**
   * Whether a row can be computed here.
   * @param {number} index
   * @param {number} head
   * @param {number} query
   */
  hasRow(index, head, query) {
    const decoded = this.head(index, head);
    return decoded !== null && (decoded.rows === null || decoded.rows.includes(query));
  }

  /**
   * Every weight of a head; null where they are too many or not in the page.
   * @param {number} index
   * @param {number} head
   */
  map(index, head) {
    const { queries, keys } = this.attention(index);
    const decoded = this.head(index, head);
    if (!decoded || decoded.rows || queries * keys > MAX_EXACT_WEIGHTS) return null;
    return cached(this.#maps, `${index}.${head}`, 16, () => tile(decoded, 0, queries, 0, keys));
  }

  /**
   * The weight that each query gives to a key; null where they are not all in the page.
   * @param {number} index
   * @param {number} head
   * @param {number} key
   */
  column(index, head, key) {
    const { queries, keys } = this.attention(index);
    const decoded = this.head(index, head);
    if (!decoded || decoded.rows) return null;
    const weights = this.map(index, head);
    return weights ? Float64Array.from({ length: queries }, (_, query) => Number(weights[query * keys + key])) : Float64Array.from(tile(decoded, 0, queries, key, key + 1));
  }

  /**
   * The map as a picture: each cell is the sum of the weights in it, divided by the number of its queries.
   * @param {number} index
   * @param {number} head
   */
  pooledMap(index, head) {
    const { pooled, max_pooled: largest } = this.headFacts(index, head);
    const [rows = 0, columns = 0] = pooled.shape;
    return { rows, columns, cells: this.array(pooled).map((root) => root * root * largest) };
  }

  /** @param {Ref} ref */
  array(ref) {
    return decodeArray(this.numbers, this.facts.num_int16, ref);
  }

  /**
   * @param {Attention} attention
   * @param {Payload} payload
   * @returns {Head}
   */
  #decode(attention, payload) {
    const { queries, keys, d_key: dKey, d_value: dValue, scale, softcap } = attention;
    const { k, v } = required(attention.kv_heads[payload.kv_head], "keys and values");
    const firstKey = attention.first_key && this.array(attention.first_key);
    const endKey = attention.end_key && this.array(attention.end_key);
    const allowed = payload.allowed && this.array(payload.allowed);
    const bias = payload.bias && this.array(payload.bias);
    const byPair = payload.bias?.shape.length === 2;
    return {
      q: this.array(payload.q),
      k: this.array(k),
      v: v && this.array(v),
      dKey,
      dValue,
      queries,
      keys,
      rows: payload.rows && this.array(payload.rows),
      lse: payload.lse && this.array(payload.lse),
      scale,
      softcap,
      sink: payload.sink,
      bias: bias && ((query, key) => Number(bias[byPair ? query * keys + key : key - query + queries - 1])),
      allowed: allowed
        ? (query, key) => allowed[query * keys + key] === 1
        : firstKey && endKey && ((query, key) => key >= Number(firstKey[query]) && key < Number(endKey[query])),
    };
  }
}

/**
 * The bytes that `data_elements` in regard/views/html/bundle.py wrote.
 * @param {Document} page
 * @param {string} id
 */
export async function readEncoded(page, id) {
  const script = page.getElementById(id);
  if (!script) throw new Error(`this page has lost its ${id}: write it anew`);
  return gunzip(decodeSevenBits(script.textContent ?? ""), Number(script.dataset.bytes));
}

/**
 * @template Value
 * @param {Map<string, Value>} memory
 * @param {string} key
 * @param {number} maxSize
 * @param {() => Value} element
 * @returns {Value}
 */
function cached(memory, key, maxSize, element) {
  const old = memory.get(key);
  if (old !== undefined) return old;
  const value = element();
  const [oldest] = memory.keys();
  if (memory.size >= maxSize && oldest !== undefined) memory.delete(oldest);
  memory.set(key, value);
  return value;
}

/**
 * @template Value
 * @param {Value | undefined} value
 * @param {string} name
 * @returns {Value}
 */
function required(value, name) {
  if (value === undefined) throw new RangeError(`there is no ${name} in this page`);
  return value;
}
