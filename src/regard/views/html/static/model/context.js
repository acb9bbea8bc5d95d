/**
 * The words that texts share, and what becomes of them layer by layer: `contextual_vectors(...).to_dict()` of
 * regard/lens/text/contextual.py, for the view Context.
 */

import { dotProduct } from "./eigen.js";
import { InputError } from "./errors.js";
import { principalPlanes } from "./plane.js";
import { normalizeWord } from "./words.js";

/** @typedef {import("../core/data.js").Context} Context */
/** @typedef {import("../core/data.js").ContextPart} ContextPart */
/** @typedef {import("../core/data.js").ContextWord} ContextWord */
/** @typedef {import("./words.js").Words} Words */

/** The most shared words, and the most other words, in the result. */
const MAX_WORDS = 200;

/** Punctuation, and signs such as "<"; emoji have another category. */
const MARKS = /^[\p{P}\p{Sm}\p{Sc}\p{Sk}]*$/u;

const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;

/**
 * A text that the model has read.
 * @typedef {object} ReadText
 * @property {Words} words
 * @property {Float32Array[]} hiddenStates num_layers + 1 arrays, each tokens * d_model
 */

/**
 * A word's vectors: for each text that has it, one float64 vector for each hidden state.
 * @typedef {Map<number, Float64Array[]>} WordVectors
 */

/**
 * The words that texts share, and the differences between their hidden states.
 * @param {ReadText[]} texts at least two
 * @param {string | null} firstWord the word to list first, if several texts have it; `lastSharedWord` for what `see` shows
 * @returns {{context: Context, reason: null} | {context: null, reason: string}} a reason where no two texts share a word
 * @throws {InputError} hidden states that are not finite
 */
export function contextOf(texts, firstWord = null) {
  const positions = texts.map(({ words }) => words.firstPositions());
  const { shared, others } = splitShared(positions);
  if (!shared.length) {
    const described = texts.map(({ words }) => words.describe()).join("; ");
    return { context: null, reason: `no two of the texts share a word. Their words are, text by text: ${described}` };
  }
  const vectors = new Map([...shared, ...others].map((word) => [word, vectorsOf(word, texts, positions)]));
  const cosines = new Map(shared.map((word) => [word, cosinesOf(known(vectors, word))]));
  const listed = listedWords(shared, vectors, cosines, firstWord);
  const { points, explained } = pointsOf([...listed, ...others], vectors);
  /** @param {string} word @returns {ContextWord} */
  const describe = (word) => {
    const [first] = known(vectors, word).keys();
    return {
      word: texts[first].words.surfaceForm(known(positions[first], word)),
      cosines: (cosines.get(word) ?? []).map(({ sentence, cosine }) => ({ sentence, cosine: cosine.map((c) => rounded(c, 7)) })),
      points: texts.map((_, text) => points.get(`${text} ${word}`) ?? null),
    };
  };
  /** @type {Context} */
  const context = {
    sentences: texts.map(({ words }, text) => splitSentence(words, positions[text], listed)),
    words: listed.map(describe),
    other_words: others.map(describe),
    num_shared: shared.length,
    explained_variance: explained.map((share) => rounded(share, 4)),
    num_layers: texts[0].hiddenStates.length - 1,
  };
  return { context, reason: null };
}

/**
 * The word with which `see(text, compare=...)` begins: the last one of the first text that all texts have; a mark such as
 * "." only if they share nothing else. Null where they share no word.
 * @param {Words[]} texts
 */
export function lastSharedWord(texts) {
  const [first, ...others] = texts;
  const known = others.map((words) => words.firstPositions());
  const written = first.wordPositions().map((positions) => first.surfaceForm(positions));
  const shared = written.filter((word) => known.every((positions) => positions.has(normalizeWord(word))));
  return shared.findLast((word) => LETTER_OR_DIGIT.test(word)) ?? shared.at(-1) ?? null;
}

/**
 * The words of at least two texts, and the first words of each text that no other text has.
 * @param {Map<string, number[]>[]} positions
 */
function splitShared(positions) {
  /** @type {Map<string, number>} */
  const count = new Map();
  for (const places of positions) for (const word of places.keys()) count.set(word, (count.get(word) ?? 0) + 1);
  const shared = [...count.keys()].filter((word) => known(count, word) > 1);
  const perText = Math.floor(MAX_WORDS / positions.length);
  const others = positions.flatMap((places) =>
    [...places.keys()].filter((word) => count.get(word) === 1 && !MARKS.test(word)).slice(0, perText),
  );
  const words = shared.filter((word) => !MARKS.test(word));
  return { shared: words.length ? words : shared, others };
}

/**
 * The vector of a word of several tokens is their mean.
 * @param {string} word
 * @param {ReadText[]} texts
 * @param {Map<string, number[]>[]} positions
 * @returns {WordVectors}
 */
function vectorsOf(word, texts, positions) {
  /** @type {WordVectors} */
  const vectors = new Map();
  texts.forEach(({ words, hiddenStates }, text) => {
    const places = positions[text]?.get(word);
    const width = (/** @type {Float32Array} */ state) => state.length / words.encoding.ids.length;
    if (places) vectors.set(text, hiddenStates.map((state) => meanOf(state, places, width(state))));
  });
  return vectors;
}

/**
 * @param {Float32Array} state
 * @param {number[]} places
 * @param {number} width
 */
function meanOf(state, places, width) {
  const mean = new Float64Array(width);
  for (const place of places) for (let i = 0; i < width; i++) mean[i] += state[place * width + i];
  return mean.map((sum) => sum / places.length);
}

/**
 * A word in its other texts, compared with the first text that has it.
 * @param {WordVectors} vectors
 */
function cosinesOf(vectors) {
  const [first, ...others] = vectors;
  return others.map(([sentence, states]) => ({
    sentence,
    cosine: states.map((state, i) => cosineOf(first[1][i], state)),
  }));
}

/**
 * @param {Float64Array} a
 * @param {Float64Array} b
 */
function cosineOf(a, b) {
  const norms = Math.max(Math.sqrt(dotProduct(a, a)), 1e-8) * Math.max(Math.sqrt(dotProduct(b, b)), 1e-8);
  const cosine = dotProduct(a, b) / norms;
  if (Number.isFinite(cosine)) return cosine;
  throw new InputError("the model computes numbers that are not finite: its weights are damaged or out of range");
}

/**
 * The shared words in the order in which they are listed: the first one, then those that change most.
 * @param {string[]} shared
 * @param {Map<string, WordVectors>} vectors
 * @param {Map<string, {cosine: number[]}[]>} cosines
 * @param {string | null} firstWord
 */
function listedWords(shared, vectors, cosines, firstWord) {
  /** @param {string} word */
  const size = (word) => known(vectors, word).size;
  /** @param {string} word */
  const least = (word) => Math.min(...known(cosines, word).map(({ cosine }) => cosine[cosine.length - 1]));
  const asked = firstWord === null ? null : normalizeWord(firstWord);
  // Of the words in the most texts the last one: "a river bank", "a loan in a bank".
  const last = shared.reduce((best, word) => (size(word) >= size(best) ? word : best));
  const first = asked !== null && shared.includes(asked) ? asked : last;
  const byChange = shared.map((word) => ({ word, cosine: least(word) })).sort((a, b) => a.cosine - b.cosine);
  return [first, ...byChange.map(({ word }) => word).filter((word) => word !== first)].slice(0, MAX_WORDS);
}

/**
 * Each word's points in the plane of all vectors, rounded to four digits.
 * @param {string[]} names
 * @param {Map<string, WordVectors>} vectors
 */
function pointsOf(names, vectors) {
  const each = names.flatMap((word) => [...known(vectors, word)].map(([text, states]) => ({ name: `${text} ${word}`, states })));
  const layers = each[0].states.map((_, i) => each.map(({ states }) => states[i]));
  const { planes, explained } = principalPlanes(layers);
  const points = new Map(
    each.map(({ name }, i) => [
      name,
      planes.map((plane) => /** @type {[number, number]} */ (plane[i].map((x) => Number(x.toPrecision(4))))),
    ]),
  );
  return { points, explained };
}

/**
 * A text in parts: the listed words at their first occurrence, and the text between them.
 * @param {Words} words
 * @param {Map<string, number[]>} positions
 * @param {string[]} listed
 */
function splitSentence(words, positions, listed) {
  const found = listed.flatMap((word, number) => {
    const places = positions.get(word);
    return places ? [{ places, number }] : [];
  });
  found.sort((a, b) => a.places[0] - b.places[0]);
  /** @type {ContextPart[]} */
  const parts = [];
  let end = 0;
  for (const { places, number } of found) {
    const written = words.surfaceForm(places);
    const start = words.text.indexOf(written, words.encoding.offsets[places[0]][0]);
    if (start < end) continue;
    parts.push({ text: words.text.slice(end, start), word: null }, { text: written, word: number });
    end = start + written.length;
  }
  parts.push({ text: words.text.slice(end), word: null });
  return parts.filter(({ text }) => text);
}

/**
 * @template Key, Value
 * @param {Map<Key, Value>} map
 * @param {Key} key
 */
const known = (map, key) => /** @type {Value} */ (map.get(key));

/**
 * @param {number} number
 * @param {number} digits
 */
const rounded = (number, digits) => Number(number.toFixed(digits));
