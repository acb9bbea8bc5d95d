/** What the unit tests share: a head small enough to check by hand, and numbers that may differ by rounding. */

import assert from "node:assert/strict";

/** @typedef {import("../../../src/regard/views/html/static/core/attention.js").Head} Head */

// Two queries, three keys; q . k is 1, 2, 3 for query 0 and 4, -1, 3 for query 1. The scale is 1/2.
/** @param {Partial<Head>} [changes] 
 * @returns {Head} */
export function small(changes = {}) {
  return {
    q: Float32Array.of(1, 2, 4, -1),
    k: Float32Array.of(1, 0, 0, 1, 1, 1),
    v: Float32Array.of(1, 10, 100, 1000, 0, -1, -2, -3, 0.5, 0, 0, 4),
    dKey: 2,
    dValue: 4,
    queries: 2,
    keys: 3,
    rows: null,
    lse: null,
    scale: 0.5,
    softcap: null,
    sink: null,
    bias: null,
    allowed: null,
    ...changes,
  };
}

/**
 * Fails where two rows of numbers differ by more than rounding; NaN and infinities must be the same.
 * @param {ArrayLike<number> | null} found
 * @param {ArrayLike<number>} expected
 * @param {number} [tolerance]
 */
export function close(found, expected, tolerance = 1e-12) {
  assert.ok(found, "there is nothing");
  assert.equal(found.length, expected.length, "another count of numbers");
  Array.from(expected).forEach((number, i) => {
    const other = Number(found[i]);
    const same = Object.is(other, number) || Math.abs(other - number) <= tolerance;
    assert.ok(same, `number ${i} is ${other} and not ${number}: ${Array.from(found)}`);
  });
}
