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
 * Where a token stands in another text: behind the same beginning, or before the same end; else at the same position.
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
  const moved = index >= before.length - sameEnd ? index + after.length - before.length : index;
  return Math.max(0, Math.min(moved, after.length - 1));
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
