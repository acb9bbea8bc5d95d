/** The views of a decoder that writes: which tokens stand in a table, and the map that grows. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { pairCandidates } from "../../../src/regard/views/html/static/next/candidates.js";
import { growingRows, squareCells } from "../../../src/regard/views/html/static/next/growing.js";
import { WritingRun } from "../../../src/regard/views/html/static/next/run.js";

/** @typedef {import("../../../src/regard/views/html/static/live/engine.js").WrittenToken} WrittenToken */

const next = (/** @type {number} */ id, /** @type {number} */ probability) => ({ id, token: ` t${id}`, text: ` t${id}`, logit: Math.log(probability), probability });

/**
 * @param {string} query
 * @param {number[]} weights
 * @returns {WrittenToken}
 */
const written = (query, weights) => ({ token: next(1, 0.5), candidates: [], text: ` after ${query}`, query, weights });

describe("pairCandidates", () => {
  test("a token of both sides is one row, in the order before the edits, and those that came in follow", () => {
    const [a, b, c, after] = [next(1, 0.6), next(2, 0.3), next(3, 0.5), next(1, 0.2)];
    assert.deepEqual(pairCandidates([a, b], [c, after]), [
      { before: a, after },
      { before: b, after: null },
      { before: null, after: c },
    ]);
  });
});

describe("growingRows", () => {
  const PROMPT = { tokens: ["The", " end"], weights: Float32Array.of(1, 0, 0.25, 0.75) };

  test("the first written token's row is the prompt's last, and each further one is new", () => {
    const { tokens, rows } = growingRows(PROMPT, [written(" end", [0.5, 0.5]), written(" of", [0.25, 0.25, 0.5])]);
    assert.deepEqual(tokens, ["The", " end", " of"]);
    assert.deepEqual(rows.map((row) => row && Array.from(row)), [[1, 0], [0.5, 0.5], [0.25, 0.25, 0.5]]);
  });

  test("before the first token the map is the prompt's", () => {
    assert.deepEqual(growingRows(PROMPT, []).rows.map((row) => row && Array.from(row)), [[1, 0], [0.25, 0.75]]);
  });

  test("rows of a prompt whose weights are not in the page are not known, and those that are written are", () => {
    const { rows } = growingRows({ tokens: ["a", "b", "c"], weights: null }, [written("c", [0, 0, 1]), written("d", [0, 0, 0, 1])]);
    assert.deepEqual(rows, [null, null, [0, 0, 1], [0, 0, 0, 1]]);
  });
});

describe("squareCells", () => {
  test("nothing is known of rows that are null, and nothing is above the diagonal", () => {
    assert.deepEqual([...squareCells([[1], null, [0.25, 0.25, 0.5]])], [1, 0, 0, NaN, NaN, 0, 0.25, 0.25, 0.5]);
  });
});

describe("WritingRun", () => {
  test("it belongs to the text that it began with and to the one that it has written, and to no other", () => {
    const run = new WritingRun({ text: "a", max_new_tokens: 2, temperature: 0, seed: 0, show: { attention: 0, head: 0 } });
    run.tokens.push(written("a", [1]), written("b", [0, 1]));
    assert.deepEqual(
      ["a", "a after a", "a after a after b", ""].map((text) => run.belongsTo(text)),
      [true, false, true, false],
    );
    assert.equal(run.textBefore(1), "a after a");
  });
});
