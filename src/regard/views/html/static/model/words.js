/** The words of a text and the tokens that each word consists of, as regard/lens/text/words.py finds them. */

import { InputError, quoted } from "./errors.js";

/** @typedef {import("./tokenizer.js").Encoding} Encoding */
/** @typedef {import("./tokenizer.js").WordPieceTokenizer} WordPieceTokenizer */

/** The most words that a message lists, and the longest that it writes in full. */
const MAX_LISTED_WORDS = 40;
const MAX_LISTED_LENGTH = 60;

/** What Python's str.strip, str.split and str.isspace take for space; JavaScript's \s is another set. */
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACES = new RegExp(`[${SPACE}]+`, "u");
const OUTER_SPACES = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu");

const ACCENT = /^\p{M}/u;

/** A letter, a digit, or a sign that joins or accents letters. */
const WORD_CHARACTER = /^[\p{L}\p{N}\p{M}\p{Cf}]/u;

/** A text, its tokens, and which tokens form which word. A position is the index of a token. */
export class Words {
  /**
   * @param {string} text
   * @param {Encoding} encoding of the text
   */
  constructor(text, encoding) {
    this.text = text;
    this.encoding = encoding;
  }

  /**
   * Tokenizes a text.
   * @param {string} text
   * @param {WordPieceTokenizer} tokenizer
   * @throws {InputError} the text is empty, too long or not valid, or it has no tokens
   */
  static of(text, tokenizer) {
    if (!stripped(text)) throw new InputError("the text is empty; write a sentence");
    const words = new Words(text, tokenizer.encode(text));
    if (!words.wordPositions().length) {
      throw new InputError(`${quoted(text)} has no tokens: the tokenizer drops control characters and spaces`);
    }
    return words;
  }

  /** The tokens in readable form: the labels of a page. A piece of a word that begins with ## stays as it is. */
  displayTokens() {
    return this.encoding.tokens.map((token, position) => {
      const characters = this.#characters(position);
      const unchanged = !this.isText(position) || !characters || token.startsWith("##");
      return unchanged || normalizeWord(token) === normalizeWord(characters) ? token : characters;
    });
  }

  /** For each token the characters of the text that it stands for; "" for a special token of the template. */
  surfaceForms() {
    return this.encoding.tokens.map((token, position) =>
      this.isText(position) ? this.surfaceForm([position]) || this.#characters(position) || token : "",
    );
  }

  /**
   * The characters of the text that neighbouring tokens stand for; a special token is returned as it is.
   * @param {number[]} positions
   */
  surfaceForm(positions) {
    const first = positions[0];
    if (!this.isText(first)) return this.encoding.tokens[first];
    let end = this.encoding.offsets[positions[positions.length - 1]][1];
    // A tokenizer that strips accents leaves the last accent outside the token.
    for (let accent; (accent = ACCENT.exec(this.text.slice(end, end + 2))); ) end += accent[0].length;
    return stripped(this.text.slice(this.encoding.offsets[first][0], end));
  }

  /** The positions of each word and punctuation mark, in order; tokens that are only space belong to none. */
  wordPositions() {
    /** @type {number[][]} */
    const groups = [];
    this.encoding.tokens.forEach((_, position) => {
      if (!this.isText(position)) return;
      const last = groups.at(-1);
      if (last && !this.#beginsWord(position)) last.push(position);
      else groups.push([position]);
    });
    return groups.filter((positions) => this.surfaceForm(positions));
  }

  /** The positions of the first occurrence of each word; the words are normalized as by `normalizeWord`. */
  firstPositions() {
    /** @type {Map<string, number[]>} */
    const first = new Map();
    for (const positions of this.wordPositions()) {
      const word = normalizeWord(this.surfaceForm(positions));
      if (!first.has(word)) first.set(word, positions);
    }
    return first;
  }

  /** The different words of the text for a message; only the first words of a long text. */
  describe() {
    const written = this.wordPositions().map((positions) => {
      const characters = Array.from(this.surfaceForm(positions));
      const beginning = characters.slice(0, MAX_LISTED_LENGTH).join("");
      return characters.length > MAX_LISTED_LENGTH ? `${beginning}...` : beginning;
    });
    const words = [...new Set(written)];
    const more = words.length > MAX_LISTED_WORDS ? ` and ${words.length - MAX_LISTED_WORDS} more` : "";
    return words.slice(0, MAX_LISTED_WORDS).join(", ") + more;
  }

  /**
   * Whether a token comes from the text; false for a special token that the template added.
   * @param {number} position
   */
  isText(position) {
    return this.encoding.words[position] !== null;
  }

  /**
   * Whether a token is the first of its word. What the tokenizer takes for one word may be several for a reader: a mark
   * after a letter begins a word, too.
   * @param {number} position
   */
  #beginsWord(position) {
    const { words, offsets } = this.encoding;
    if (position === 0 || words[position] === null || words[position] !== words[position - 1]) return true;
    const before = offsets[position - 1][1];
    const [start, end] = offsets[position];
    if (start < before || !stripped(this.#characters(position - 1))) return false;
        const previous = Array.from(this.text.slice(Math.max(0, start - 2), start)).at(-1) ?? "";
    const isAfterSpace = this.text.slice(before, end).search(SPACES) === 0;
    return isAfterSpace || WORD_CHARACTER.test(previous) !== WORD_CHARACTER.test(this.#characters(position));
  }

  /** @param {number} position */
  #characters(position) {
    return this.text.slice(...this.encoding.offsets[position]);
  }
}

/**
 * A word for comparison: without case, with composed accents and single spaces.
 * @param {string} word
 */
export function normalizeWord(word) {
  return Array.from(word.normalize("NFC"), caseFolded).join("").split(SPACES).filter(Boolean).join(" ");
}

/**
 * A character without case: two that Unicode's full case folding makes equal become equal.
 * @param {string} character
 */
function caseFolded(character) {
  // The dotless i has a capital that is another letter's.
  if (character === "\u0131") return character;
  // By way of the capital, so that "ß" and "ss" are equal; each letter alone, so that no sigma knows the end of a word.
  return Array.from(character.toLowerCase().toUpperCase(), (letter) => letter.toLowerCase()).join("");
}

/** @param {string} text */
const stripped = (text) => text.replace(OUTER_SPACES, "");
