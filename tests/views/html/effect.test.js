/** The order of effects, their ranks, and what is said of them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { largest, partDescription, partOrders, ranks, shortNumber, sortParts } from "../../../src/regard/views/html/static/effect/order.js";

/** @typedef {import("../../../src/regard/views/html/static/core/data.js").EffectPart} EffectPart */
/** @typedef {import("../../../src/regard/views/html/static/core/data.js").EffectFacts} EffectFacts */

/**
 * @param {string} name
 * @param {Partial<EffectPart>} changes
 * @returns {EffectPart}
 */
const part = (name, changes) => ({ name, attention: null, head: null, token: null, effect: null, estimate: null, looked_at: null, ...changes });

const PARTS = [
  part("small", { effect: 0.1, estimate: 9, looked_at: 0.5 }),
  part("lowers", { effect: -3, looked_at: 0.9 }),
  part("unknown", { looked_at: 0.7 }),
  part("estimated", { estimate: 1 }),
  part("raises", { effect: 2, looked_at: 0 }),
];

/** @param {Partial<EffectFacts>} changes */
const facts = (changes) =>
  /** @type {EffectFacts} */ ({ over: "heads", metric: "m", ablation: "zero", method: "exact", looked_at: "attention", baseline: 1, num_texts: 1, summary: "", notes: [], text: null, has_exact: true, has_estimates: false, parts: PARTS, num_parts: 5, ...changes });

/** @param {import("../../../src/regard/views/html/static/effect/order.js").PartOrder} order */
const sorted = (order) => sortParts(PARTS, order).map(({ name }) => name);

test("parts sort by effect, by its sign and by attention; an estimate stands in for an effect that is not known", () => {
  assert.deepEqual(sorted("effect"), ["lowers", "raises", "estimated", "small", "unknown"]);
  assert.deepEqual(sorted("raises"), ["raises", "estimated", "small", "lowers", "unknown"]);
  assert.deepEqual(sorted("lowers"), ["lowers", "small", "estimated", "raises", "unknown"]);
  assert.deepEqual(sorted("looked_at"), ["lowers", "unknown", "small", "raises", "estimated"]);
  assert.deepEqual(sorted("place"), PARTS.map(({ name }) => name));
});

test("a rank counts from 1, and what is not known has none", () => {
  const found = ranks(PARTS, "effect");
  assert.deepEqual(PARTS.map((each) => found.get(each) ?? null), [4, 1, null, 3, 2]);
});

test("bars are measured by the largest number of either sign", () => {
  assert.equal(largest(PARTS, ["effect"]), 3);
  assert.equal(largest(PARTS, ["effect", "estimate"]), 9);
  assert.equal(largest([part("none", {})], ["effect"]), 1);
});

test("numbers have three digits, and a dash where there is none", () => {
  assert.deepEqual([3.0412, -0.05, 0.2, 0, 1234.5, 0.00001, null].map(shortNumber), ["3.04", "−0.0500", "0.200", "0", "1235", "1.0e−5", "–"]);
});

test("an estimate is called one", () => {
  assert.equal(partDescription(facts({}), part("", { effect: 2, looked_at: 0.25 })), "effect 2.00, looked at 0.250");
  const both = facts({ has_estimates: true, looked_at: null });
  assert.equal(partDescription(both, part("", { estimate: 1 })), "effect not computed exactly, estimate 1.00");
  const estimated = facts({ has_exact: false, has_estimates: true, looked_at: null });
  assert.equal(partDescription(estimated, part("", { estimate: 1 })), "effect estimated to first order 1.00");
});

test("without attention nothing sorts by it", () => {
  assert.deepEqual(partOrders(facts({ looked_at: null })).map(([order]) => order), ["effect", "raises", "lowers", "place"]);
});
