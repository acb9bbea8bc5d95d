/** The normalizer of BERT's tokenizer, and where in the text each normalized character comes from. */

import { CHINESE, DECOMPOSED, MARK, REMOVED, REORDERED, WHITESPACE } from "./characters.js";

/** @typedef {import("./characters.js").CharacterClasses} CharacterClasses */
/** @typedef {import("./tokenizer.js").WordPieceSettings} WordPieceSettings */

/**
 * A normalized text, character by character; of each the place in the text, in UTF-16 units.
 * @typedef {object} Normalized
 * @property {string[]} characters
 * @property {number[]} starts
 * @property {number[]} ends
 */

/**
 * A text as BERT reads it.
 * @param {string} text
 * @param {WordPieceSettings["normalizer"]} options
 * @param {CharacterClasses} classes
 * @returns {Normalized}
 */
export function normalize(text, options, classes) {
  let normalized = split(text);
  if (options.clean_text) {
    normalized = mapped(normalized, (character) => {
      if (classes.has(character, REMOVED)) return [];
      return [classes.has(character, WHITESPACE) ? " " : character];
    });
  }
  if (options.handle_chinese_chars) {
    normalized = mapped(normalized, (character) => (classes.has(character, CHINESE) ? [" ", character, " "] : [character]));
  }
  if (options.strip_accents) {
    normalized = decomposed(normalized, classes);
    normalized = mapped(normalized, (character) => (classes.has(character, MARK) ? [] : [character]));
  }
  // One character at a time: JavaScript writes a sigma at the end of a word otherwise, and the library does not.
  if (options.lowercase) normalized = mapped(normalized, (character) => Array.from(character.toLowerCase()));
  return normalized;
}

/**
 * @param {string} text
 * @returns {Normalized}
 */
function split(text) {
  const characters = Array.from(text);
  const ends = new Array(characters.length);
  const starts = new Array(characters.length);
  let at = 0;
  characters.forEach((character, i) => {
    starts[i] = at;
    at += character.length;
    ends[i] = at;
  });
  return { characters, starts, ends };
}

/**
 * Each character replaced by some, which stand for the same place in the text.
 * @param {Normalized} text
 * @param {(character: string) => string[]} replace
 * @returns {Normalized}
 */
function mapped(text, replace) {
  /** @type {Normalized} */
  const result = { characters: [], starts: [], ends: [] };
  text.characters.forEach((character, i) => {
    for (const each of replace(character)) {
      result.characters.push(each);
      result.starts.push(text.starts[i]);
      result.ends.push(text.ends[i]);
    }
  });
  return result;
}

/**
 * The canonical decomposition (NFD).
 *
 * Where it sorts marks, the library gives places in the new order: the i-th character that is no further part of a
 * decomposition stands for the i-th place, and a further part for the place before it.
 * @param {Normalized} text
 * @param {CharacterClasses} classes
 * @returns {Normalized}
 */
function decomposed(text, classes) {
  /** @type {string[]} */
  const characters = [];
  /** @type {boolean[]} */
  const isFurther = [];
  for (const character of text.characters) {
    const parts = classes.has(character, DECOMPOSED) ? Array.from(character.normalize("NFD")) : [character];
    parts.forEach((part, i) => {
      characters.push(part);
      isFurther.push(i > 0);
    });
  }
  sortMarks(characters, isFurther, classes);
  let place = -1;
  const places = isFurther.map((further) => (further ? place : ++place));
  return { characters, starts: places.map((i) => text.starts[i]), ends: places.map((i) => text.ends[i]) };
}

/**
 * Sorts each run of marks by their combining class, in place, as NFD does.
 * @param {string[]} characters
 * @param {boolean[]} isFurther
 * @param {CharacterClasses} classes
 */
function sortMarks(characters, isFurther, classes) {
  for (let start = 0; start < characters.length; start++) {
    let end = start;
    while (end < characters.length && classes.has(characters[end], REORDERED)) end++;
    if (end - start > 1) {
      const run = characters.slice(start, end);
      // The sort is stable: the flags of equal marks keep their order.
      const flags = new Map(run.map((mark) => [mark, /** @type {boolean[]} */ ([])]));
      run.forEach((mark, i) => flags.get(mark)?.push(isFurther[start + i]));
      Array.from(run.join("").normalize("NFD")).forEach((mark, i) => {
        characters[start + i] = mark;
        isFurther[start + i] = Boolean(flags.get(mark)?.shift());
      });
    }
    start = Math.max(start, end);
  }
}
