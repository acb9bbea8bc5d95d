import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { isAllowed, entropy, rowIndex, products, softmax, steps, tile } from "../../../src/regard/views/html/static/core/attention.js";
import { close, small } from "./small.js";

const { log } = Math;

test("softmax takes scores whose exponentials no number can hold, a sink, and nothing at all", () => {
  close(softmax(Float64Array.of(log(1), log(2), log(5)), log(8)), [1 / 16, 2 / 16, 5 / 16]);
  close(softmax(Float64Array.of(1e6, 1e6, -1e6)), [0.5, 0.5, 0]);
  close(softmax(Float64Array.of(0, 0), 1e6), [0, 0]);
  close(softmax(Float64Array.of(-Infinity, -Infinity)), [0, 0]);
  close(softmax(new Float64Array(0)), []);
});

describe("the steps of a row", () => {
  test("have no output where no values are carried", () => {
    assert.equal(steps(small({ v: null }), 0).output, null);
  });

  test("take values that are not numbers into account only where they have weight", () => {
    const v = Float32Array.of(1, NaN, 3);
    close(steps(small({ v, dValue: 1, allowed: (_, key) => key !== 1 }), 0).output, [(1 + 3 * Math.E) / (1 + Math.E)]);
  });

  test("leave the head as it was, whatever is edited", () => {
    const head = small();
    steps(head, 0, { scores: { 0: 9 }, scale: 3, temperature: 2, mask: { 1: false }, removedKeys: [2] });
    assert.deepEqual(head, small());
    assert.equal(isAllowed(head, 0, 1, { removedKeys: [1], mask: { 1: true } }), false);
  });
});

describe("some rows of many", () => {
  const carried = small({ q: Float32Array.of(1, 2, 4, -1), rows: Float32Array.of(3, 700), queries: 1000 });

  test("are found and computed, and the others are refused by name", () => {
    assert.deepEqual([0, 3, 4, 700, 999].map((query) => rowIndex(carried, query)), [-1, 0, -1, 1, -1]);
    assert.equal(rowIndex({ ...carried, rows: new Float32Array(0) }, 0), -1);
    close(steps(carried, 700).scores, [4, -1, 3]);
    assert.throws(() => steps(carried, 699), new RangeError("the row of query 699 is not in this page"));
  });

  test("know their own number in masks and biases", () => {
    const head = { ...carried, bias: (/** @type {number} */ query) => query, allowed: (/** @type {number} */ query) => query === 700 };
    close(steps(head, 700).biased, [702, 699.5, 701.5]);
    close(steps(head, 3).weights, [0, 0, 0]);
  });
});

test("a part of the map has the weights of its rows, and NaN where a row is not carried", () => {
  const allowed = (/** @type {number} */ query, /** @type {number} */ key) => key <= query + 1;
  const rows = [0, 1].map((query) => steps(small({ allowed }), query).weights);
  close(tile(small({ allowed }), 1, 2, 1, 3), [...(rows[1]?.subarray(1) ?? [])], 1e-7);
  assert.equal(tile(small(), 1, 1, 0, 3).length, 0);
  const empty = Float32Array.of(-Infinity, -Infinity);
  close(tile(small({ bias: () => -Infinity, lse: empty }), 0, 2, 0, 3), [0, 0, 0, 0, 0, 0]);
  const [known, ...unknown] = tile(small({ rows: Float32Array.of(0, 2), queries: 3 }), 0, 2, 2, 3);
  close([Number(known)], [Number(steps(small(), 0).weights[2])], 1e-7);
  assert.deepEqual(unknown, [NaN]);
});

test("the products of a score, dimension by dimension, sum to it", () => {
  assert.deepEqual(products(small(), 1, 2), [{ q: 4, k: 1, product: 4 }, { q: -1, k: 1, product: -1 }]);
});

test("entropy is the logarithm of how many keys share alike", () => {
  close([entropy([0.25, 0.25, 0.25, 0.25]), entropy([0, 1, 0]), entropy([])], [log(4), 0, 0]);
});
