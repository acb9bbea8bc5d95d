/**
 * BERT's tokenizer in the page: the same ids, tokens, offsets and words as the library tokenizers gives.
 * Its settings are written by regard/views/html/wordpiece.py.
 */

import { InputError, LONE_SURROGATE, quoted } from "./errors.js";
import { normalize } from "./normalizer.js";
import { CharacterClasses, PUNCTUATION, WHITESPACE } from "./characters.js";

/** @typedef {import("./normalizer.js").Normalized} Normalized */

/**
 * What a tokenizer needs, as wordpiece_settings of wordpiece.py returns it.
 * @typedef {object} WordPieceSettings
 * @property {string} vocab the tokens in the order of their ids, one a line
 * @property {string} unk_token of a word that the vocabulary cannot spell
 * @property {string} prefix of a token that continues a word
 * @property {number} max_word_length in characters; a longer word is one `unk_token`
 * @property {[string, number][]} special_tokens and their ids: found in the text as they are written
 * @property {{before: number[], after: number[]}} template the ids that are added around a text
 * @property {number | null} max_tokens of a text that the model can read, those of the template included
 * @property {{clean_text: boolean, handle_chinese_chars: boolean, strip_accents: boolean, lowercase: boolean}} normalizer
 * @property {Record<string, number[]>} characters for each class of characters its ranges: the first code point and the
 *   last, one after the other
 */

/**
 * The tokens of a text, those of the template included.
 * @typedef {object} Encoding
 * @property {number[]} ids
 * @property {string[]} tokens
 * @property {[number, number][]} offsets of each token in the text, in UTF-16 units; [0, 0] of a token of the template
 * @property {(number | null)[]} words of each token the number of its word; null of a token of the template
 */

export class WordPieceTokenizer {
  /** @type {Map<string, number>} */
  #ids = new Map();
  /** @type {Map<number, string>} */
  #tokens = new Map();
  /** @type {RegExp | null} */
  #special = null;

  /** @param {WordPieceSettings} settings */
  constructor(settings) {
    this.settings = settings;
    this.classes = new CharacterClasses(settings.characters);
    settings.vocab.split("\n").forEach((token, id) => this.#name(token, id));
    for (const [token, id] of settings.special_tokens) this.#name(token, id);
    // The longest first: where two special tokens begin at the same place, tokenizers takes the longer one.
    const special = settings.special_tokens.map(([token]) => token).sort((a, b) => b.length - a.length);
    if (special.length) this.#special = new RegExp(special.map(escaped).join("|"), "gu");
  }

  /**
   * The tokens of a text.
   * @param {string} text
   * @returns {Encoding}
   * @throws {InputError} half a character (a lone surrogate), which Python refuses as well; more tokens than the model
   *   can read
   */
  encode(text) {
    if (text.search(LONE_SURROGATE) >= 0) {
      throw new InputError(`${quoted(text)} is not valid text: it holds half a character (a lone surrogate)`);
    }
    const { template, max_tokens: limit } = this.settings;
    /** @type {Encoding} */
    const encoding = { ids: [], tokens: [], offsets: [], words: [] };
    for (const id of template.before) this.#add(encoding, id, 0, 0, null);
    this.#addText(encoding, text);
    for (const id of template.after) this.#add(encoding, id, 0, 0, null);
    const count = encoding.ids.length;
    if (limit !== null && count > limit) {
      throw new InputError(
        `the text has ${count} tokens, and the model has positions for ${limit}; it is ${quoted(text)}. Shorten it or split it`,
      );
    }
    return encoding;
  }

  /**
   * Adds the tokens of a text: special tokens as they are written, and the words between them.
   * @param {Encoding} encoding
   * @param {string} text
   */
  #addText(encoding, text) {
    let [end, word] = [0, 0];
    for (const found of this.#special ? text.matchAll(this.#special) : []) {
      word = this.#addWords(encoding, text.slice(end, found.index), end, word);
      end = found.index + found[0].length;
      this.#add(encoding, Number(this.#ids.get(found[0])), found.index, end, word++);
    }
    this.#addWords(encoding, text.slice(end), end, word);
  }

  /**
   * Adds the tokens of a text without special tokens.
   * @param {Encoding} encoding
   * @param {string} text
   * @param {number} shift the place of its beginning
   * @param {number} word the number of its first word
   */
  #addWords(encoding, text, shift, word) {
    const normalized = normalize(text, this.settings.normalizer, this.classes);
    for (const [first, end] of wordRanges(normalized, this.classes)) {
      for (const [id, from, to] of this.#pieces(normalized.characters.slice(first, end))) {
        this.#add(encoding, id, shift + normalized.starts[first + from], shift + normalized.ends[first + to - 1], word);
      }
      word += 1;
    }
    return word;
  }

  /**
   * A word as the longest tokens of the vocabulary, from its beginning on; the token for an unknown word if that fails.
   * @param {string[]} characters of the word
   * @returns {[number, number, number][]} the id of each, its first character and the one after its last
   */
  #pieces(characters) {
    const { max_word_length: longest, prefix, unk_token: unknown } = this.settings;
    const whole = /** @type {[number, number, number][]} */ ([[Number(this.#ids.get(unknown)), 0, characters.length]]);
    if (characters.length > longest) return whole;
    /** @type {[number, number, number][]} */
    const pieces = [];
    for (let start = 0; start < characters.length; ) {
      let end = characters.length;
      let id;
      for (; end > start; end--) {
        id = this.#ids.get((start ? prefix : "") + characters.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return whole;
      pieces.push([id, start, end]);
      start = end;
    }
    return pieces;
  }

  /**
   * @param {Encoding} encoding
   * @param {number} id
   * @param {number} start
   * @param {number} end
   * @param {number | null} word
   */
  #add(encoding, id, start, end, word) {
    encoding.ids.push(id);
    encoding.tokens.push(this.#tokens.get(id) ?? "");
    encoding.offsets.push([start, end]);
    encoding.words.push(word);
  }

  /**
   * @param {string} token
   * @param {number} id
   */
  #name(token, id) {
    this.#ids.set(token, id);
    this.#tokens.set(id, token);
  }
}

/**
 * The words of a text: what stands between spaces, and each punctuation mark alone.
 * @param {Normalized} text
 * @param {CharacterClasses} classes
 * @returns {[number, number][]} of each the first character and the one after the last
 */
function wordRanges({ characters }, classes) {
  /** @type {[number, number][]} */
  const ranges = [];
  let begins = true;
  characters.forEach((character, i) => {
    const isMark = classes.has(character, PUNCTUATION);
    const last = ranges.at(-1);
    if (classes.has(character, WHITESPACE)) begins = true;
    else {
      if (begins || isMark || !last) ranges.push([i, i + 1]);
      else last[1] = i + 1;
      begins = isMark;
    }
  });
  return ranges;
}

/** @param {string} text */
const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
