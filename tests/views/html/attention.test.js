import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { isAllowed, entropy, rowIndex, products, softmax, steps, tile } from "../../../src/regard/views/html/static/core/attention.js";
import { close, small } from "./small.js";

const { log } = Math;

describe("softmax", () => {
  test("gives shares in proportion to the exponentials", () => {
    close(softmax(Float64Array.of(log(1), log(2), log(5))), [1 / 8, 2 / 8, 5 / 8]);
  });

  test("takes scores whose exponentials no number can hold", () => {
    close(softmax(Float64Array.of(1e6, 1e6, -1e6)), [0.5, 0.5, 0]);
    close(softmax(Float64Array.of(-1e6, -1e6 + log(3))), [0.25, 0.75], 1e-9);
  });

  test("gives what is masked nothing, and nothing at all where everything is", () => {
    close(softmax(Float64Array.of(0, -Infinity, 0)), [0.5, 0, 0.5]);
    close(softmax(Float64Array.of(-Infinity, -Infinity)), [0, 0]);
    close(softmax(new Float64Array(0)), []);
  });

  test("leaves a sink its share", () => {
    close(softmax(Float64Array.of(log(1), log(2), log(5)), log(8)), [1 / 16, 2 / 16, 5 / 16]);
    close(softmax(Float64Array.of(-Infinity, -Infinity), 0), [0, 0]);
    close(softmax(Float64Array.of(0, 0), -Infinity), [0.5, 0.5]);
    close(softmax(Float64Array.of(0, 0), 1e6), [0, 0]);
  });
});

describe("the steps of a row", () => {
  test("are the definition's", () => {
    const { scores, scaled, capped, biased, masked, weights, output } = steps(small(), 0);
    close(scores, [1, 2, 3]);
    for (const step of [scaled, capped, biased, masked]) close(step, [0.5, 1, 1.5]);
    const exponentials = [0.5, 1, 1.5].map(Math.exp);
    const sum = exponentials.reduce((total, each) => total + each);
    const [a = 0, b = 0, c = 0] = exponentials.map((each) => each / sum);
    close(weights, [a, b, c]);
    close(output, [a + 0.5 * c, 10 * a - b, 100 * a - 2 * b, 1000 * a - 3 * b + 4 * c]);
  });

  test("hold the soft-cap, the bias and the mask, in this order", () => {
    const bias = (/** @type {number} */ query, /** @type {number} */ key) => 10 * query + key;
    const { scaled, capped, biased, masked, weights } = steps(small({ softcap: 2, bias, allowed: (_, key) => key < 2 }), 1);
    close(scaled, [2, -0.5, 1.5]);
    const [first = 0, second = 0, third = 0] = [2, -0.5, 1.5].map((score) => 2 * Math.tanh(score / 2));
    close(capped, [first, second, third]);
    close(biased, [first + 10, second + 11, third + 12]);
    close(masked, [first + 10, second + 11, -Infinity]);
    close(weights, [1 / (1 + Math.exp(second - first + 1)), 1 / (1 + Math.exp(first - second - 1)), 0]);
  });

  test("give zero weights and a zero output where nothing may be attended", () => {
    const { masked, weights, output } = steps(small({ allowed: () => false }), 0);
    close(masked, [-Infinity, -Infinity, -Infinity]);
    close(weights, [0, 0, 0]);
    close(output, [0, 0, 0, 0]);
  });

  test("have no output where no values are carried", () => {
    assert.equal(steps(small({ v: null }), 0).output, null);
  });

  test("take values that are not numbers into account only where they have weight", () => {
    const v = Float32Array.of(1, NaN, 3);
    close(steps(small({ v, dValue: 1, allowed: (_, key) => key !== 1 }), 0).output, [(1 + 3 * Math.E) / (1 + Math.E)]);
  });
});

describe("what if", () => {
  const before = steps(small(), 0);

  test("nothing is edited: nothing changes", () => {
    assert.deepEqual(steps(small(), 0, {}), before);
    assert.deepEqual(steps(small(), 0, { temperature: 1, scores: {}, mask: {}, removedKeys: [] }), before);
  });

  test("a score is another", () => {
    const { scores, weights } = steps(small(), 0, { scores: { 1: -4 } });
    close(scores, [1, -4, 3]);
    close(weights, softmax(Float64Array.of(0.5, -2, 1.5)));
  });

  test("the scale is another", () => {
    const { scores, scaled } = steps(small(), 0, { scale: 2 });
    close(scores, [1, 2, 3]);
    close(scaled, [2, 4, 6]);
  });

  test("the temperature divides all that goes into the softmax, a sink too", () => {
    close(steps(small(), 0, { temperature: 0.25 }).masked, [2, 4, 6]);
    close(steps(small({ sink: 1 }), 0, { temperature: 0.5 }).weights, softmax(Float64Array.of(1, 2, 3), 2));
    close(steps(small(), 0, { temperature: 1e9 }).weights, [1 / 3, 1 / 3, 1 / 3], 1e-8);
  });

  test("the mask is another, both ways", () => {
    const causal = small({ allowed: (query, key) => key <= query });
    close(steps(causal, 0).weights, [1, 0, 0]);
    close(steps(causal, 0, { mask: { 2: true } }).masked, [0.5, -Infinity, 1.5]);
    close(steps(small(), 0, { mask: { 0: false } }).masked, [-Infinity, 1, 1.5]);
  });

  test("a token is left out, whatever the mask says of it", () => {
    close(steps(small(), 0, { removedKeys: [1, 2] }).weights, [1, 0, 0]);
    assert.equal(isAllowed(small(), 0, 1, { removedKeys: [1], mask: { 1: true } }), false);
  });

  test("the head is as it was afterwards", () => {
    const head = small();
    steps(head, 0, { scores: { 0: 9 }, scale: 3, temperature: 2, mask: { 1: false }, removedKeys: [2] });
    assert.deepEqual(head, small());
  });
});

describe("some rows of many", () => {
  const carried = small({ q: Float32Array.of(1, 2, 4, -1), rows: Float32Array.of(3, 700), queries: 1000 });

  test("are found", () => {
    assert.deepEqual([0, 3, 4, 700, 999].map((query) => rowIndex(carried, query)), [-1, 0, -1, 1, -1]);
    assert.equal(rowIndex(small(), 1), 1);
    assert.equal(rowIndex({ ...carried, rows: new Float32Array(0) }, 0), -1);
  });

  test("are computed, and the others are refused by name", () => {
    close(steps(carried, 700).scores, [4, -1, 3]);
    assert.throws(() => steps(carried, 699), new RangeError("the row of query 699 is not in this page"));
  });

  test("know their own number in masks and biases", () => {
    const head = { ...carried, bias: (/** @type {number} */ query) => query, allowed: (/** @type {number} */ query) => query === 700 };
    close(steps(head, 700).biased, [702, 699.5, 701.5]);
    close(steps(head, 3).weights, [0, 0, 0]);
  });
});

describe("a part of the map", () => {
  const allowed = (/** @type {number} */ query, /** @type {number} */ key) => key <= query + 1;

  test("has the weights of its rows", () => {
    const rows = [0, 1].map((query) => steps(small({ allowed }), query).weights);
    close(tile(small({ allowed }), 0, 2, 0, 3), rows.flatMap((row) => [...row]), 1e-7);
    close(tile(small({ allowed }), 1, 2, 1, 3), [...(rows[1]?.subarray(1) ?? [])], 1e-7);
    assert.equal(tile(small(), 1, 1, 0, 3).length, 0);
  });

  test("has the same weights by the rows' sums", () => {
    const changes = { allowed, softcap: 2, sink: 0.5, bias: (/** @type {number} */ query, /** @type {number} */ key) => query - key };
    const sums = [0, 1].map((query) => {
      const { masked } = steps(small(changes), query);
      return Math.log(masked.reduce((sum, score) => sum + Math.exp(score), Math.exp(0.5)));
    });
    close(tile(small({ ...changes, lse: Float32Array.from(sums) }), 0, 2, 0, 3), tile(small(changes), 0, 2, 0, 3), 1e-6);
  });

  test("is zero where a row attends to nothing, and NaN where a row is not carried", () => {
    const empty = Float32Array.of(-Infinity, -Infinity);
    close(tile(small({ allowed: () => false, lse: empty }), 0, 2, 0, 3), [0, 0, 0, 0, 0, 0]);
    close(tile(small({ bias: () => -Infinity, lse: empty }), 0, 2, 0, 3), [0, 0, 0, 0, 0, 0]);
    const [known, ...unknown] = tile(small({ rows: Float32Array.of(0, 2), queries: 3 }), 0, 2, 2, 3);
    close([Number(known)], [Number(steps(small(), 0).weights[2])], 1e-7);
    assert.deepEqual(unknown, [NaN]);
  });
});

test("the products of a score, dimension by dimension, sum to it", () => {
  assert.deepEqual(products(small(), 1, 2), [
    { q: 4, k: 1, product: 4 },
    { q: -1, k: 1, product: -1 },
  ]);
});

test("entropy is the logarithm of how many keys share alike", () => {
  close([entropy([0.25, 0.25, 0.25, 0.25]), entropy([0, 1, 0]), entropy([])], [log(4), 0, 0]);
});
