/** The order of heads, the steps of arrow keys, and what is said of a head. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { distanceText, gridStep, groupHeads, sortHeads } from "../../../src/regard/views/html/static/heads/order.js";

/**
 * @param {number} layer
 * @param {number} number
 * @param {Partial<import("../../../src/regard/views/html/static/core/data.js").HeadFacts>} facts
 * @returns {import("../../../src/regard/views/html/static/heads/order.js").HeadPlace}
 */
function place(layer, number, facts) {
  const pooled = { at: 0, shape: [1, 1], step: 1, type: /** @type {const} */ ("u8") };
  const plain = { number, head_type: "mixed", head_type_scores: {}, entropy: 1, distance: null, first_token_share: null, pairs: [], pooled, max_pooled: 1, payload: null };
  return { attention: layer, head: number, layer, facts: { ...plain, ...facts } };
}

const PLACES = [
  place(0, 0, { head_type: "mixed", entropy: 2.5, first_token_share: 0.1, distance: -2 }),
  place(0, 1, { head_type: "attention sink", head_type_scores: { "attention sink": 0.6 }, entropy: 0.5, first_token_share: 0.6 }),
  place(1, 0, { head_type: "previous token", head_type_scores: { "previous token": 0.7 }, entropy: 1, distance: 1 }),
  place(1, 1, { head_type: "attention sink", head_type_scores: { "attention sink": 0.9 }, entropy: 2, first_token_share: 0.9, distance: 30 }),
];

/** @param {import("../../../src/regard/views/html/static/heads/order.js").Order} order */
const sorted = (order) => sortHeads(PLACES, order).map(({ layer, head }) => `${layer}.${head}`);

test("heads sort by what is asked for, and what is not known comes last", () => {
  assert.deepEqual(sorted("layer"), ["0.0", "0.1", "1.0", "1.1"]);
  assert.deepEqual(sorted("head_type"), ["1.0", "1.1", "0.1", "0.0"]);
  assert.deepEqual(sorted("entropy"), ["0.1", "1.0", "1.1", "0.0"]);
  assert.deepEqual(sorted("first_token_share"), ["1.1", "0.1", "0.0", "1.0"]);
  assert.deepEqual(sorted("distance"), ["1.1", "1.0", "0.0", "0.1"]);
});

test("heads of a group come layer by layer, however the page lists them", () => {
  const attentions = [
    { group: "decoder", layer: 1, heads: [PLACES[0]?.facts] },
    { group: "cross", layer: 0, heads: [PLACES[0]?.facts] },
    { group: "decoder", layer: 0, heads: [PLACES[0]?.facts, PLACES[1]?.facts] },
  ];
  const data = /** @type {import("../../../src/regard/views/html/static/core/data.js").Data} */ (
    /** @type {unknown} */ ({ facts: { attentions }, attention: (/** @type {number} */ index) => attentions[index] })
  );
  assert.deepEqual(groupHeads(data, 0).map(({ attention, head }) => [attention, head]), [[2, 0], [2, 1], [0, 0]]);
});

test("arrows stay in the grid", () => {
  const steps = [["ArrowDown", 1], ["ArrowDown", 5], ["ArrowLeft", 0], ["End", 0], ["Tab", 0]];
  assert.deepEqual(steps.map(([key, at]) => gridStep(String(key), Number(at), 8, 4)), [5, 5, 0, 7, null]);
});

test("distances are said in words", () => {
  assert.deepEqual([1, -2.34, 30.4, 0.01, null].map(distanceText), ["1.0 tokens back", "2.3 tokens ahead", "30 tokens back", "0 tokens", null]);
});
