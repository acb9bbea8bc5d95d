/** Where a page begins, and which choices it can show. */

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
  const state = { view: "sentence", attention, head, more: [], query, key: null, threshold: 0.05, area: null, edits: {}, word: 0 };
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
  const first = initialState(data);
  const within = (/** @type {unknown} */ number, /** @type {number} */ count, /** @type {number} */ other) =>
    Number.isInteger(number) && Number(number) >= 0 && Number(number) < count ? Number(number) : other;
  const attention = within(state.attention, data.facts.attentions.length, first.attention);
  const { queries, keys, heads } = data.attention(attention);
  const head = within(state.head, heads.length, Math.min(first.head, heads.length - 1));
  const query = within(state.query, queries, Math.min(first.query, queries - 1));
  const key = state.key === null ? -1 : within(state.key, keys, -1);
  const more = Array.isArray(state.more) ? [...new Set(state.more)].filter((each) => within(each, heads.length, -1) >= 0 && each !== head) : [];
  const [top = 0, bottom = 0, left = 0, right = 0] = Array.isArray(state.area) && state.area.length === 4 ? state.area : [];
  const shown = [top, bottom, left, right].every(Number.isInteger) && top >= 0 && top < bottom && bottom <= queries && left >= 0 && left < right && right <= keys;
  return {
    view: views.includes(state.view) ? state.view : String(views[0]),
    attention,
    head,
    more,
    query,
    key: key < 0 ? null : key,
    threshold: Number.isFinite(state.threshold) ? Math.min(1, Math.max(0, state.threshold)) : first.threshold,
    area: shown ? [top, bottom, left, right] : null,
    edits: validEdits(state.edits, keys),
    word: within(state.word, data.facts.context?.words.length ?? 0, 0),
  };
}

/**
 * Edits that fit a row.
 * @param {unknown} said
 * @param {number} keys
 * @returns {import("./attention.js").Edits}
 */
function validEdits(said, keys) {
  if (!said || typeof said !== "object") return {};
  const { scores, scale, temperature, mask, without } = /** @type {import("./attention.js").Edits} */ (said);
  const fits = (/** @type {string | number} */ key) => Number.isInteger(Number(key)) && String(Number(key)) === String(key) && Number(key) >= 0 && Number(key) < keys;
  const bounded = (/** @type {unknown} */ value) => Number.isFinite(value) && Math.abs(Number(value)) <= MAX_EDIT;
  /** @type {import("./attention.js").Edits} */
  const edits = {};
  if (scores) edits.scores = Object.fromEntries(Object.entries(scores).filter(([key, score]) => fits(key) && bounded(score)));
  if (bounded(scale)) edits.scale = Number(scale);
  if (bounded(temperature) && Number(temperature) >= 1 / MAX_EDIT) edits.temperature = Number(temperature);
  if (mask) edits.mask = Object.fromEntries(Object.entries(mask).filter(([key, may]) => fits(key) && typeof may === "boolean"));
  if (Array.isArray(without)) edits.without = [...new Set(without)].filter((key) => typeof key === "number" && fits(key));
  return edits;
}
