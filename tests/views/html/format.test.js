import assert from "node:assert/strict";
import { test } from "node:test";

import { steps } from "../../../src/regard/views/html/static/core/attention.js";
import * as parts from "../../../src/regard/views/html/static/row/format.js";
import { close, small } from "./small.js";

test("the steps of a head are those that it has, in the order of the definition", () => {
  assert.deepEqual(parts.stepNames(small({ scale: 1 })), ["scores"]);
  const all = small({ softcap: 2, bias: () => 1, allowed: () => true });
  assert.deepEqual(parts.stepNames(all), ["scores", "scaled", "capped", "biased", "masked"]);
  assert.equal(parts.isPaperScale(small({ dKey: 32, scale: Math.fround(1 / Math.sqrt(32)) })), true);
  assert.equal(parts.isPaperScale(small({ dKey: 32, scale: 0.177 })), false);
});

test("what the softmax is made of gives the weights", () => {
  const head = small({ sink: 1.25 });
  const { masked, weights } = steps(head, 1);
  const { largest, sum, sinkShare } = parts.softmaxParts(masked, head.sink);
  close(weights, [...masked].map((score) => Math.exp(score - largest) / sum));
  close([Number(sinkShare)], [1 - weights.reduce((total, weight) => total + weight)]);
  assert.deepEqual(parts.softmaxParts(Float64Array.of(-Infinity), null), { largest: -Infinity, sum: 0, sinkShare: null });
  assert.equal(parts.softmaxParts(Float64Array.of(-Infinity), 3).sinkShare, 1);
});

test("how far an output moved is an angle and a length, open where a vector is zero", () => {
  const { cosine, relative } = parts.vectorChange([3, 4], [4, -3]);
  close([Number(cosine), Number(relative)], [0, Math.SQRT2]);
  close([Number(parts.vectorChange([1, 2], [-2, -4]).cosine)], [-1]);
  assert.deepEqual(parts.vectorChange([0, 0], [1, 2]), { cosine: null, relative: null });
  assert.deepEqual(parts.vectorChange([1, 2], [0, 0]), { cosine: null, relative: 1 });
});

test("the token that is meant is that of its number, or the next with such a part, and it fits", () => {
  const tokens = ["The", "river", "7", "bank", "river"];
  const found = (/** @type {string} */ said, from = 0, fits = (/** @type {number} */ _) => true) => parts.findToken(tokens, said, from, fits);
  assert.deepEqual([found(" 3 "), found("RIV"), found("riv", 1), found("riv", 4)], [3, 1, 4, 1]);
  assert.equal(found("7"), 2, "a number behind the last token is a part of a token");
  assert.deepEqual([found("riv", 0, (index) => index !== 1), found("3", 0, (index) => index !== 3)], [4, -1]);
  assert.deepEqual(["", "  ", "lake", "99"].map((said) => found(said)), [-1, -1, -1, -1]);
});

test("numbers say what they are", () => {
  assert.deepEqual([0.3421, 0, 0.00001, 1].map(parts.weightText), ["34.21 %", "0.00 %", "< 0.01 %", "100.00 %"]);
  assert.deepEqual([1.5, -0.25, 0.00001].map((value) => parts.signedText(value, 2)), ["+1.50", "−0.25", "±0.00"]);
});
