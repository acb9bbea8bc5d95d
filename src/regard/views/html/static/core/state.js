/** The initial state of a page, and the nearest valid state for a link. */

import { MAX_EDIT } from "./attention.js";

/** @typedef {import("./data.js").Data} Data */
/** @typedef {import("./store.js").State} State */

/**
 * The state in which a page opens.
 * @param {Data} data
 * @returns {State}
 */
export function initialState(data) {
  const { attention, head, query } = data.facts.initial;
  const state = { view: data.facts.view ?? "sentence", attention, head, extraHeads: [], query, key: null, threshold: 0.05, viewport: null, edits: {}, word: 0 };
  return state;
}

/**
 * The nearest state that this page can show: links are written by hand, too.
 * @param {State} state
 * @param {Data} data
 * @param {string[]} views
 * @returns {State}
 */
export function validState(state, data, views) {
  const initial = initialState(data);
  if (data.facts.attentions.length === 0) return initial; // a page of effects alone
  const validIndex = (/** @type {unknown} */ number, /** @type {number} */ count, /** @type {number} */ other) =>
    Number.isInteger(number) && Number(number) >= 0 && Number(number) < count ? Number(number) : other;
  const attention = validIndex(state.attention, data.facts.attentions.length, initial.attention);
  const { queries, keys, heads } = data.attention(attention);
  const head = validIndex(state.head, heads.length, Math.min(initial.head, heads.length - 1));
  const query = validIndex(state.query, queries, Math.min(initial.query, queries - 1));
  const key = state.key === null ? -1 : validIndex(state.key, keys, -1);
  const extraHeads = Array.isArray(state.extraHeads) ? [...new Set(state.extraHeads)].filter((each) => validIndex(each, heads.length, -1) >= 0 && each !== head) : [];
  const [top = 0, bottom = 0, left = 0, right = 0] = Array.isArray(state.viewport) && state.viewport.length === 4 ? state.viewport : [];
  const isValid = [top, bottom, left, right].every(Number.isInteger) && top >= 0 && top < bottom && bottom <= queries && left >= 0 && left < right && right <= keys;
  return {
    view: views.includes(state.view) ? state.view : String(views[0]),
    attention,
    head,
    extraHeads,
    query,
    key: key < 0 ? null : key,
    threshold: Number.isFinite(state.threshold) ? Math.min(1, Math.max(0, state.threshold)) : initial.threshold,
    viewport: isValid ? [top, bottom, left, right] : null,
    edits: validEdits(state.edits, keys),
    word: validIndex(state.word, data.facts.context?.words.length ?? 0, 0),
  };
}

/**
 * Edits that fit a row.
 * @param {unknown} value
 * @param {number} keys
 * @returns {import("./attention.js").Edits}
 */
function validEdits(value, keys) {
  if (!value || typeof value !== "object") return {};
  const { scores, scale, temperature, mask, removedKeys } = /** @type {import("./attention.js").Edits} */ (value);
  const isKey = (/** @type {string | number} */ key) => Number.isInteger(Number(key)) && String(Number(key)) === String(key) && Number(key) >= 0 && Number(key) < keys;
  const isInRange = (/** @type {unknown} */ value) => Number.isFinite(value) && Math.abs(Number(value)) <= MAX_EDIT;
  /** @type {import("./attention.js").Edits} */
  const edits = {};
  if (scores) edits.scores = Object.fromEntries(Object.entries(scores).filter(([key, score]) => isKey(key) && isInRange(score)));
  if (isInRange(scale)) edits.scale = Number(scale);
  if (isInRange(temperature) && Number(temperature) >= 1 / MAX_EDIT) edits.temperature = Number(temperature);
  if (mask) edits.mask = Object.fromEntries(Object.entries(mask).filter(([key, may]) => isKey(key) && typeof may === "boolean"));
  if (Array.isArray(removedKeys)) edits.removedKeys = [...new Set(removedKeys)].filter((key) => typeof key === "number" && isKey(key));
  return edits;
}
