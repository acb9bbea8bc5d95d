import assert from "node:assert/strict";
import { test } from "node:test";

import { steps } from "../../../src/regard/views/html/static/core/attention.js";
import * as made from "../../../src/regard/views/html/static/whatif/edits.js";
import { small } from "./small.js";

/** @typedef {import("../../../src/regard/views/html/static/whatif/edits.js").Change} Change */

/** @type {Change[]} */
const CHANGES = [
  { kind: "score", key: 2, value: 5 },
  { kind: "score", key: 0, value: -1 },
  { kind: "mask", key: 1, value: false },
  { kind: "remove", key: 2, value: true },
  { kind: "scale", value: 0.25 },
  { kind: "temperature", value: 2 },
];
const ALL = CHANGES.reduce(made.applyChange, {});

test("edits are gone without a trace when they are taken back, and those before are as they were", () => {
  const before = structuredClone(ALL);
  const undoChange = CHANGES.map((change) => /** @type {Change} */ ({ ...change, value: null }));
  assert.deepEqual(undoChange.reduce(made.applyChange, ALL), {});
  assert.deepEqual(made.clearKey(ALL, 2), { scores: { 0: -1 }, mask: { 1: false }, scale: 0.25, temperature: 2 });
  assert.deepEqual(made.applyChange({}, { kind: "remove", key: 4, value: null }), {});
  assert.deepEqual(ALL, before);
});

test("edits are listed with what they changed from, and each with what takes it back", () => {
  const list = made.describeEdits(ALL, small(), 0, steps(small(), 0).scores);
  assert.deepEqual(
    list.map(({ undoChange, key, before, after }) => [undoChange.kind, key, before, after]),
    [
      ["scale", null, "0.5", "0.25"],
      ["temperature", null, "1", "2"],
      ["score", 0, "1", "-1"],
      ["mask", 1, "allowed", "forbidden"],
      ["score", 2, "3", "5"],
      ["remove", 2, "in the text", "left out"],
    ],
  );
  assert.deepEqual(list.map(({ undoChange }) => undoChange).reduce(made.applyChange, ALL), {});
});

test("what is typed is a number, or a sentence says what is wanted", () => {
  assert.deepEqual(made.parseNumber("-2.50", false), { value: -2.5 });
  assert.deepEqual(made.parseNumber("1e-3", false, true), { value: 0.001 });
  for (const [text, bad] of /** @type {[string, boolean][]} */ ([["", true], ["", false], [" ", false], ["1e999", false], ["abc", false]])) {
    assert.match(String(Object.values(made.parseNumber(text, bad))[0]), /number is wanted/);
  }
  assert.match(String(Object.values(made.parseNumber("0", false, true))[0]), /above 0/);
  assert.deepEqual([2.312345, 20, 0.1 + 0.2, -1e-7].map(made.shortNumber), ["2.3123", "20", "0.3", "-1e-7"]);
});
