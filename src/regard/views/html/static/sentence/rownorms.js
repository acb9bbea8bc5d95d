/** The norms of a head's rows, so that one weight of a row can be known without the others: a little at a time. */

import { steps } from "../core/attention.js";

/** @typedef {import("../core/attention.js").Head} Head */

/** So many milliseconds of work, then somebody else's turn. */
const NORM_TURN = 8;

/** What is known of a head: its norms; null while they are computed. @type {WeakMap<Head, Float32Array | null>} */
const KNOWN_NORMS = new WeakMap();

/**
 * The logarithm of each row's sum of exponentials; null while it is not yet known.
 * @param {Head} head
 * @param {() => void} done called once it is
 */
export function rowNorms(head, done) {
  if (head.lse) return head.lse;
  const known = KNOWN_NORMS.get(head);
  if (known !== undefined) return known;
  KNOWN_NORMS.set(head, null);
  const norms = new Float32Array(head.rows?.length ?? head.queries);
  let row = 0;
  const work = () => {
    const until = performance.now() + NORM_TURN;
    while (row < norms.length && performance.now() < until) {
      norms[row] = normOfRow(head, head.rows?.[row] ?? row);
      row++;
    }
    if (row < norms.length) setTimeout(work);
    else {
      KNOWN_NORMS.set(head, norms);
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
export function normOfRow(head, query) {
  const { masked, weights } = steps({ ...head, v: null }, query);
  let most = 0;
  weights.forEach((weight, key) => {
    if (weight > Number(weights[most])) most = key;
  });
  const weight = Number(weights[most]);
  return weight > 0 ? Number(masked[most]) - Math.log(weight) : -Infinity;
}
