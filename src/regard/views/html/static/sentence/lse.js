/** The log-sum-exp of a head's rows, from which a single weight of a row is computed: in short time slices. */

import { steps } from "../core/attention.js";

/** @typedef {import("../core/attention.js").Head} Head */

/** Milliseconds of work, after which other events are handled. */
const TIME_SLICE = 8;

/** The log-sum-exp of the rows of a head; null while it is computed. @type {WeakMap<Head, Float32Array | null>} */
const lseCache = new WeakMap();

/**
 * The logarithm of each row's sum of exponentials; null while it is not yet known.
 * @param {Head} head
 * @param {() => void} done called once it is
 */
export function rowLse(head, done) {
  if (head.lse) return head.lse;
  const cachedValues = lseCache.get(head);
  if (cachedValues !== undefined) return cachedValues;
  lseCache.set(head, null);
  const values = new Float32Array(head.rows?.length ?? head.queries);
  let row = 0;
  const work = () => {
    const deadline = performance.now() + TIME_SLICE;
    while (row < values.length && performance.now() < deadline) {
      values[row] = computeLse(head, head.rows?.[row] ?? row);
      row++;
    }
    if (row < values.length) setTimeout(work);
    else {
      lseCache.set(head, values);
      done();
    }
  };
  setTimeout(work);
  return null;
}

/**
 * The logarithm of a row's sum of exponentials, its sink's among them; -Infinity where there is nothing to attend to.
 * @param {Head} head
 * @param {number} query
 */
export function computeLse(head, query) {
  const { masked, weights } = steps({ ...head, v: null }, query);
  let largest = 0;
  weights.forEach((weight, key) => {
    if (weight > Number(weights[largest])) largest = key;
  });
  const weight = Number(weights[largest]);
  return weight > 0 ? Number(masked[largest]) - Math.log(weight) : -Infinity;
}
