/** The type of each head: where it attends, whatever the words mean. As regard/lens/maps/head_types.py has it. */

/** The patterns, in the order in which equal scores choose. */
export const PATTERNS = ["previous token", "attention sink", "same token", "induction", "delimiter"];

/** A head has the type of a pattern if this share of its attention, on average, follows the pattern. */
const MIN_PATTERN_SCORE = 0.5;

/** And only if this share of the rows could show it. */
const MIN_ROW_SHARE = 0.25;

/** A head is uniform from this share of the largest entropy on. */
const MIN_UNIFORM_SCORE = 0.9;

/** Tokens that end a sentence or a part of it. */
const DELIMITERS = new Set([".", ",", ";", ":", "!", "?", "[SEP]", "</s>", "<eos>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"]);

/**
 * What the tokens of a text are to one another: the same for all heads.
 * @typedef {object} TokenRoles
 * @property {Uint8Array} delimiters 1 for each delimiter
 * @property {number[][]} repeats for each token the places of the same token, its own among them
 */

/**
 * @typedef {object} HeadType
 * @property {string} head_type
 * @property {Record<string, number | null>} head_type_scores null where no row could show it
 */

/**
 * Whether a token is a delimiter, with or without the space that tokenizers write before it.
 * @param {string} token
 */
export function isDelimiter(token) {
  return DELIMITERS.has(token.replace(/^[Ġ▁ ]+/u, ""));
}

/**
 * @param {string[]} tokens
 * @returns {TokenRoles}
 */
export function tokenRoles(tokens) {
  /** @type {Map<string, number[]>} */
  const places = new Map();
  const repeats = tokens.map((token, place) => {
    const same = places.get(token) ?? [];
    if (same.length === 0) places.set(token, same);
    same.push(place);
    return same;
  });
  return { delimiters: Uint8Array.from(tokens, (token) => Number(isDelimiter(token))), repeats };
}

/**
 * The type of a head whose queries all see every key, and its score for each type, 0 to 1.
 *
 * A score is the mean over the rows that could show the type. Of one token there is nothing to choose: no row counts.
 * @param {import("./attention_weights.js").HeadWeights} head
 * @param {TokenRoles} roles
 * @returns {HeadType}
 */
export function headType({ n, weights, entropies }, { delimiters, repeats }) {
  const means = Object.fromEntries([...PATTERNS, "uniform"].map((name) => [name, new Mean()]));
  const add = (/** @type {string} */ name, /** @type {number} */ share) => means[name]?.add(share);
  const hasDelimiters = delimiters.includes(1, 1);
  for (let query = 0; n > 1 && query < n; query++) {
    const row = weights.subarray(query * n, (query + 1) * n);
    const same = /** @type {number[]} */ (repeats[query]);
    if (query > 0) add("previous token", Number(row[query - 1]));
    if (query > 0) add("attention sink", Number(row[0]));
    add("same token", same.reduce((sum, place) => sum + Number(row[place]), 0));
    // What followed an earlier occurrence, and is itself before the query.
    if (Number(same[0]) + 1 < query) add("induction", same.reduce((sum, place) => sum + (place + 1 < query ? Number(row[place + 1]) : 0), 0));
    if (hasDelimiters) add("delimiter", delimiterShare(row, delimiters));
    add("uniform", Number(entropies[query]) / Math.log(n));
  }
  return { head_type: typeName(means, n), head_type_scores: Object.fromEntries(Object.entries(means).map(([name, mean]) => [name, mean.value])) };
}

/**
 * @param {Float64Array} row
 * @param {Uint8Array} delimiters
 */
function delimiterShare(row, delimiters) {
  let sum = 0;
  // The first token of a text is an attention sink, never a delimiter.
  for (let key = 1; key < row.length; key++) if (delimiters[key] === 1) sum += Number(row[key]);
  return sum;
}

/**
 * The pattern with the largest score of at least a half that enough rows could show; else "uniform" or "mixed".
 * @param {Record<string, Mean>} means
 * @param {number} rows
 */
function typeName(means, rows) {
  let name = (means.uniform?.value ?? 0) >= MIN_UNIFORM_SCORE ? "uniform" : "mixed";
  let largest = 0;
  for (const pattern of PATTERNS) {
    const { value = null, count = 0 } = means[pattern] ?? {};
    if (value === null || value < MIN_PATTERN_SCORE || value <= largest || count < MIN_ROW_SHARE * rows) continue;
    largest = value;
    name = pattern;
  }
  return name;
}

/** A mean of shares; null of none. */
class Mean {
  sum = 0;
  count = 0;

  /** @param {number} share */
  add(share) {
    this.sum += share;
    this.count += 1;
  }

  get value() {
    return this.count === 0 ? null : Math.min(1, Math.max(0, this.sum / this.count));
  }
}
