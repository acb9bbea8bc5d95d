/** The order of heads, the steps of arrow keys, and what is said of a head. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { distanceText, gridStep, headSentence, headsOf, orderText, sortedHeads } from "../../src/regard/views/html/static/heads/headorder.js";

/**
 * @param {number} layer
 * @param {number} number
 * @param {Partial<import("../../src/regard/views/html/static/core/data.js").HeadFacts>} facts
 * @returns {import("../../src/regard/views/html/static/heads/headorder.js").Place}
 */
function place(layer, number, facts) {
  const picture = { at: 0, shape: [1, 1], step: 1, type: /** @type {const} */ ("u8") };
  const plain = { number, kind: "mixed", scores: {}, entropy: 1, distance: null, sink: null, pairs: [], picture, most: 1, carried: null };
  return { attention: layer, head: number, layer, facts: { ...plain, ...facts } };
}

const PLACES = [
  place(0, 0, { kind: "mixed", entropy: 2.5, sink: 0.1, distance: -2 }),
  place(0, 1, { kind: "attention sink", scores: { "attention sink": 0.6 }, entropy: 0.5, sink: 0.6 }),
  place(1, 0, { kind: "previous token", scores: { "previous token": 0.7 }, entropy: 1, distance: 1 }),
  place(1, 1, { kind: "attention sink", scores: { "attention sink": 0.9 }, entropy: 2, sink: 0.9, distance: 30 }),
];

/** @param {import("../../src/regard/views/html/static/heads/headorder.js").Order} order */
const sorted = (order) => sortedHeads(PLACES, order).map(({ layer, head }) => `${layer}.${head}`);

test("heads sort by what is asked for, and what is not known comes last", () => {
  assert.deepEqual(sorted("layer"), ["0.0", "0.1", "1.0", "1.1"]);
  assert.deepEqual(sorted("kind"), ["1.0", "1.1", "0.1", "0.0"]);
  assert.deepEqual(sorted("entropy"), ["0.1", "1.0", "1.1", "0.0"]);
  assert.deepEqual(sorted("sink"), ["1.1", "0.1", "0.0", "1.0"]);
  assert.deepEqual(sorted("distance"), ["1.1", "1.0", "0.0", "0.1"]);
});

test("heads of a group come layer by layer, however the page lists them", () => {
  const attentions = [
    { group: "decoder", layer: 1, heads: [PLACES[0]?.facts] },
    { group: "cross", layer: 0, heads: [PLACES[0]?.facts] },
    { group: "decoder", layer: 0, heads: [PLACES[0]?.facts, PLACES[1]?.facts] },
  ];
  const data = /** @type {import("../../src/regard/views/html/static/core/data.js").Data} */ (
    /** @type {unknown} */ ({ facts: { attentions }, attention: (/** @type {number} */ index) => attentions[index] })
  );
  assert.deepEqual(headsOf(data, 0).map(({ attention, head }) => [attention, head]), [[2, 0], [2, 1], [0, 0]]);
});

test("arrows stay in the grid", () => {
  assert.equal(gridStep("ArrowDown", 1, 8, 4), 5);
  assert.equal(gridStep("ArrowDown", 5, 8, 4), 5);
  assert.equal(gridStep("ArrowLeft", 0, 8, 4), 0);
  assert.equal(gridStep("End", 0, 8, 4), 7);
  assert.equal(gridStep("Tab", 0, 8, 4), null);
});

test("distances are said in words", () => {
  assert.deepEqual([1, -2.34, 30.4, 0.01, null].map(distanceText), ["1.0 tokens back", "2.3 tokens ahead", "30 tokens back", "0 tokens", null]);
});

test("a head is a sentence", () => {
  const said = headSentence(/** @type {import("../../src/regard/views/html/static/heads/headorder.js").Place} */ (PLACES[3]));
  assert.equal(said, "layer 1, head 1: attention sink, entropy 2.00 nats, 90 % on the first token, 30 tokens back");
  const [mixed, first] = PLACES.map(({ facts }) => facts);
  assert.ok(mixed && first);
  assert.equal(orderText(first, "kind"), "60 %");
  assert.equal(orderText(mixed, "kind"), "");
  assert.equal(orderText(mixed, "entropy"), "2.5 nats");
});
