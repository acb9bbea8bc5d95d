/** The page's tokenizer, words and context for bridge.js, as test_wordpiece.py and test_context_js.py call them. */

import { contextOf, lastSharedWord } from "../../../src/regard/views/html/static/model/context.js";
import { largestEigenpairs } from "../../../src/regard/views/html/static/model/eigen.js";
import { WordPieceTokenizer } from "../../../src/regard/views/html/static/model/tokenizer.js";
import { Words, normalizeWord } from "../../../src/regard/views/html/static/model/words.js";

/** @typedef {import("../../../src/regard/views/html/static/model/tokenizer.js").WordPieceSettings} WordPieceSettings */

/** @type {WordPieceTokenizer} */
let tokenizer;

/** @param {WordPieceSettings} settings */
function readSettings(settings) {
  tokenizer = new WordPieceTokenizer(settings);
  return {};
}

/**
 * What a function returns, or the name and the message of its error.
 * @template Result
 * @param {() => Result} call
 */
function attempt(call) {
  try {
    return call();
  } catch (error) {
    return error instanceof Error ? { name: error.name, message: error.message } : null;
  }
}

/** @param {string[]} texts */
const encode = (texts) => texts.map((text) => attempt(() => tokenizer.encode(text)));

/** @param {string[]} texts */
const describe = (texts) =>
  texts.map((text) =>
    attempt(() => {
      const words = Words.of(text, tokenizer);
      const positions = words.wordPositions();
      return {
        display: words.displayTokens(),
        surface: words.surfaceForms(),
        words: positions.map((each) => words.surfaceForm(each)),
        positions,
        first: [...words.firstPositions().values()],
        listed: words.describe(),
      };
    }),
  );

/** @param {string[]} words */
const normalize = (words) => words.map(normalizeWord);

/** @param {{texts: string[], states: string[][], first: string | null}} argument */
function context({ texts, states, first }) {
  const read = texts.map((text, i) => ({
    words: Words.of(text, tokenizer),
    hiddenStates: states[i].map((state) => new Float32Array(new Uint8Array(Buffer.from(state, "base64")).buffer)),
  }));
  return attempt(() => contextOf(read, first));
}

/** @param {string[]} texts */
const shared = (texts) => ({ word: lastSharedWord(texts.map((text) => Words.of(text, tokenizer))) });

/** @param {{matrix: number[][], count: number}} argument */
function eigenpairs({ matrix, count }) {
  const { values, vectors } = largestEigenpairs(matrix.map((row) => Float64Array.from(row)), count);
  return { values, vectors: vectors.map((vector) => [...vector]) };
}

/** @type {Record<string, (argument: any) => unknown>} */
export const tokenFunctions = { tokenizer: readSettings, encode, words: describe, normalize, context, shared, eigenpairs };
