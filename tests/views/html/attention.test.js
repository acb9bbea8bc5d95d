import assert from "node:assert/strict";
import { test } from "node:test";

import { rowIndex, softmax, steps, tile } from "../../../src/regard/views/html/static/core/attention.js";
import { close, small } from "./small.js";

const { log } = Math;

test("softmax takes scores whose exponentials no number can hold, a sink, and nothing at all", () => {
  close(softmax(Float64Array.of(log(1), log(2), log(5)), log(8)), [1 / 16, 2 / 16, 5 / 16]);
  close(softmax(Float64Array.of(1e6, 1e6, -1e6)), [0.5, 0.5, 0]);
  close(softmax(Float64Array.of(0, 0), 1e6), [0, 0]);
  close(softmax(Float64Array.of(-Infinity, -Infinity)), [0, 0]);
  close(softmax(new Float64Array(0)), []);
});

test("values that are not numbers count only where they have weight", () => {
  const v = Float32Array.of(1, NaN, 3);
  close(steps(small({ v, dValue: 1, allowed: (_, key) => key !== 1 }), 0).output, [(1 + 3 * Math.E) / (1 + Math.E)]);
});

test("some rows of many are found and computed, with their own number in masks and biases, and others refused", () => {
  const carried = small({ q: Float32Array.of(1, 2, 4, -1), rows: Float32Array.of(3, 700), queries: 1000 });
  assert.deepEqual([0, 3, 4, 700, 999].map((query) => rowIndex(carried, query)), [-1, 0, -1, 1, -1]);
  assert.throws(() => steps(carried, 699), new RangeError("the row of query 699 is not in this page"));
  const head = { ...carried, bias: (/** @type {number} */ query) => query, allowed: (/** @type {number} */ query) => query === 700 };
  close(steps(head, 700).biased, [702, 699.5, 701.5]);
  close(steps(head, 3).weights, [0, 0, 0]);
});

test("a part of the map is NaN where a row is not carried, and 0 where there is nothing to attend to", () => {
  const [known, ...unknown] = tile(small({ rows: Float32Array.of(0, 2), queries: 3 }), 0, 2, 2, 3);
  close([Number(known)], [Number(steps(small(), 0).weights[2])], 1e-7);
  assert.deepEqual(unknown, [NaN]);
  const empty = Float32Array.of(-Infinity, -Infinity);
  close(tile(small({ bias: () => -Infinity, lse: empty }), 0, 2, 0, 3), [0, 0, 0, 0, 0, 0]);
});
