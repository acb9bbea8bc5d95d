/**
 * The classes of characters that BERT's tokenizer distinguishes.
 *
 * The ranges are those of the library tokenizers, asked of it by wordpiece.py: its tables are of several versions of
 * Unicode, and a browser's \p{...} of yet another.
 */

export const REMOVED = 1;
export const WHITESPACE = 2;
export const CHINESE = 4;
/** With a canonical decomposition. */
export const DECOMPOSED = 8;
/** With a canonical combining class: NFD sorts these where several follow one another. */
export const REORDERED = 16;
/** Nonspacing marks, such as accents. */
export const MARK = 32;
export const PUNCTUATION = 64;

/** @type {Record<string, number>} */
const CLASSES = {
  removed: REMOVED,
  whitespace: WHITESPACE,
  chinese: CHINESE,
  decomposed: DECOMPOSED,
  reordered: REORDERED,
  mark: MARK,
  punctuation: PUNCTUATION,
};

export class CharacterClasses {
  /** For each code point its classes. */
  #classes = new Uint8Array(0x110000);

  /** @param {Record<string, number[]>} ranges for each class the first code point and the last of each of its ranges */
  constructor(ranges) {
    for (const [name, value] of Object.entries(CLASSES)) {
      const bounds = ranges[name];
      for (let i = 0; i < bounds.length; i += 2) {
        for (let code = bounds[i]; code <= bounds[i + 1]; code++) this.#classes[code] |= value;
      }
    }
  }

  /**
   * Whether a character is of a class.
   * @param {string} character
   * @param {number} value of the class
   */
  has(character, value) {
    return (this.#classes[Number(character.codePointAt(0))] & value) !== 0;
  }
}
