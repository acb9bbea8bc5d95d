/** Edits of a row as data: making them, taking one back, and listing them with what they changed from. */

import { MAX_EDIT, isAllowed } from "../core/attention.js";
import { valueAt } from "../row/format.js";

/** @typedef {import("../core/attention.js").Edits} Edits */
/** @typedef {import("../core/attention.js").Head} Head */

/**
 * One change to a row; a value of null is as the model has it.
 * @typedef {{kind: "score", key: number, value: number | null}
 *   | {kind: "mask", key: number, value: boolean | null}
 *   | {kind: "remove", key: number, value: true | null}
 *   | {kind: "scale", value: number | null}
 *   | {kind: "temperature", value: number | null}} Change
 */

/**
 * An edit as it is listed.
 * @typedef {object} Edit
 * @property {Change} undoChange the change that takes it back
 * @property {number | null} key
 * @property {string} before
 * @property {string} after
 */

/**
 * Edits with one change more; those that a change takes back are gone from them.
 * @param {Edits} edits
 * @param {Change} change
 * @returns {Edits}
 */
export function applyChange(edits, change) {
  const next = { ...edits };
  if (change.kind === "scale" || change.kind === "temperature") {
    if (change.value === null) delete next[change.kind];
    else next[change.kind] = change.value;
  } else if (change.kind === "remove") {
    const others = (edits.removedKeys ?? []).filter((key) => key !== change.key);
    next.removedKeys = change.value ? [...others, change.key] : others;
    if (next.removedKeys.length === 0) delete next.removedKeys;
  } else if (change.kind === "score") {
    next.scores = setEntry(edits.scores, change.key, change.value);
    if (Object.keys(next.scores).length === 0) delete next.scores;
  } else {
    next.mask = setEntry(edits.mask, change.key, change.value);
    if (Object.keys(next.mask).length === 0) delete next.mask;
  }
  return next;
}

/**
 * Edits without those of one key.
 * @param {Edits} edits
 * @param {number} key
 */
export function clearKey(edits, key) {
  /** @type {Change[]} */
  const undoChange = [
    { kind: "score", key, value: null },
    { kind: "mask", key, value: null },
    { kind: "remove", key, value: null },
  ];
  return undoChange.reduce(applyChange, edits);
}

/**
 * Whether a key has an edit of its own.
 * @param {Edits} edits
 * @param {number} key
 */
export function isEdited(edits, key) {
  return edits.scores?.[key] !== undefined || edits.mask?.[key] !== undefined || (edits.removedKeys?.includes(key) ?? false);
}

/**
 * The keys that have edits, in the order of the text.
 * @param {Edits} edits
 */
export function editedKeys({ scores = {}, mask = {}, removedKeys = [] }) {
  return [...new Set([...Object.keys(scores).map(Number), ...Object.keys(mask).map(Number), ...removedKeys])].sort((a, b) => a - b);
}

/**
 * Every edit with what it changed from: the whole row's first, then by key.
 * @param {Edits} edits
 * @param {Head} head
 * @param {number} query
 * @param {Float64Array} scores as the model has them
 * @returns {Edit[]}
 */
export function describeEdits(edits, head, query, scores) {
  /** @type {Edit[]} */
  const list = [];
  const { scale, temperature } = edits;
  if (scale !== undefined) list.push({ undoChange: { kind: "scale", value: null }, key: null, before: shortNumber(head.scale), after: shortNumber(scale) });
  if (temperature !== undefined) list.push({ undoChange: { kind: "temperature", value: null }, key: null, before: "1", after: shortNumber(temperature) });
  for (const key of editedKeys(edits)) {
    const score = edits.scores?.[key];
    const allowed = edits.mask?.[key];
    if (score !== undefined) list.push({ undoChange: { kind: "score", key, value: null }, key, before: shortNumber(valueAt(scores, key)), after: shortNumber(score) });
    if (allowed !== undefined) {
      const words = (/** @type {boolean} */ yes) => (yes ? "allowed" : "forbidden");
      list.push({ undoChange: { kind: "mask", key, value: null }, key, before: words(isAllowed(head, query, key)), after: words(allowed) });
    }
    if (edits.removedKeys?.includes(key)) list.push({ undoChange: { kind: "remove", key, value: null }, key, before: "in the text", after: "left out" });
  }
  return list;
}

/**
 * What a reader typed as a number, or what is wrong with it.
 * @param {string} text
 * @param {boolean} bad whether the browser found no number in what was typed
 * @param {boolean} [positive] whether it must be above 0
 * @returns {{value: number} | {error: string}}
 */
export function parseNumber(text, bad, positive = false) {
  const value = Number(text);
  if (bad || text.trim() === "" || !Number.isFinite(value)) return { error: "A number is wanted, such as 2.5." };
  if (positive && value < 1 / MAX_EDIT) return { error: "A number above 0 is wanted, such as 0.5." };
  if (Math.abs(value) > MAX_EDIT) return { error: "A number between −1,000,000 and 1,000,000 is wanted." };
  return { value };
}

/**
 * A number for a field or a sentence: five digits without trailing zeros.
 * @param {number} value
 */
export function shortNumber(value) {
  return String(Number(value.toPrecision(5)));
}

/**
 * @template Value
 * @param {Record<number, Value> | undefined} record
 * @param {number} key
 * @param {Value | null} value
 * @returns {Record<number, Value>}
 */
function setEntry(record, key, value) {
  const next = { ...record };
  if (value === null) delete next[key];
  else next[key] = value;
  return next;
}
