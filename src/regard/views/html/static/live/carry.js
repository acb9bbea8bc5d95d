/** The reader's state on the page of another text: what was chosen stays chosen where the texts are the same. */

import { isEqual } from "../core/store.js";

/** @typedef {import("../core/data.js").Data} Data */
/** @typedef {import("../core/store.js").State} State */

/**
 * The state of one page for another; `validState` makes it one that fits.
 * @param {State} state
 * @param {Data} before
 * @param {Data} after
 * @returns {State}
 */
export function carryState(state, before, after) {
  if (!before.facts.attentions[state.attention] || !after.facts.attentions[state.attention]) return { ...state, edits: {}, viewport: null };
  const old = before.tokens(state.attention);
  const now = after.tokens(state.attention);
  const isSame = isEqual(old, now);
  return {
    ...state,
    query: movedIndex(state.query, old.queries, now.queries),
    key: state.key === null ? null : movedIndex(state.key, old.keys, now.keys),
    viewport: isSame ? state.viewport : null,
    edits: isSame ? state.edits : {},
    word: sameWord(state.word, before, after),
  };
}

/**
 * Where a token stands in another text: behind the same beginning, or before the same end. Of what changed between
 * them, the nearest equal token; without one, a place in the changed part, so that a row does not leap to the end.
 * @param {number} index
 * @param {string[]} before
 * @param {string[]} after
 */
export function movedIndex(index, before, after) {
  const shorter = Math.min(before.length, after.length);
  let same = 0;
  while (same < shorter && before[same] === after[same]) same += 1;
  if (index < same) return index;
  let sameEnd = 0;
  while (sameEnd < shorter - same && before.at(-1 - sameEnd) === after.at(-1 - sameEnd)) sameEnd += 1;
  if (index >= before.length - sameEnd) return index + after.length - before.length;
  const end = after.length - sameEnd;
  return nearestEqual(before[index], index, after, same, end) ?? inChangedPart(index, same, end, after.length);
}

/**
 * The place of a token that is nearest to another place; null where there is none from `begin` to `end`. Many tokenizers
 * keep the space before a word with it, which a word at the beginning does not have.
 * @param {string | undefined} name
 * @param {number} place
 * @param {string[]} tokens
 * @param {number} begin
 * @param {number} end
 */
function nearestEqual(name, place, tokens, begin, end) {
  /** @type {number | null} */
  let nearest = null;
  for (let at = begin; at < end; at++) {
    if (tokens[at]?.trim() === name?.trim() && (nearest === null || Math.abs(at - place) < Math.abs(nearest - place))) nearest = at;
  }
  return nearest;
}

/**
 * The same place where the changed part has it, else its end; where all of it is gone, the token that took its place,
 * or the one before it where that is the last.
 * @param {number} index
 * @param {number} begin
 * @param {number} end
 * @param {number} count of all tokens
 */
function inChangedPart(index, begin, end, count) {
  if (end > begin) return Math.min(index, end - 1);
  return Math.max(0, Math.min(begin, count - 2));
}

/**
 * The place of a word of the context among those of another one; the first where it is none.
 * @param {number} place
 * @param {Data} before
 * @param {Data} after
 */
function sameWord(place, before, after) {
  const word = before.facts.context?.words[place]?.word;
  return Math.max(0, after.facts.context?.words.findIndex((each) => each.word === word) ?? 0);
}
