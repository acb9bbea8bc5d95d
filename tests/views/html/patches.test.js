/** Where the patches of an image stand. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { nextPatch, patchName, patchOfToken, patchShares, tokenOfPatch } from "../../../src/regard/views/html/static/patches/grid.js";

const image = { source: "data:,", rows: 2, columns: 3, first_patch: 1, attentions: [0] };

test("patches stand row by row behind the first", () => {
  assert.equal(tokenOfPatch(image, 1, 2), 6);
  assert.deepEqual(patchOfToken(image, 6), { row: 1, column: 2 });
  assert.equal(patchOfToken(image, 0), null);
  assert.equal(patchOfToken(image, 7), null);
  assert.equal(patchName(image, 4, []), "patch at row 1, column 0");
  assert.equal(patchName(image, 0, ["[CLS]"]), "token 0 '[CLS]'");
});

test("arrow keys stay on the image, and lead onto it", () => {
  assert.equal(nextPatch(image, 1, "ArrowRight"), 2);
  assert.equal(nextPatch(image, 1, "ArrowLeft"), 1);
  assert.equal(nextPatch(image, 2, "ArrowDown"), 5);
  assert.equal(nextPatch(image, 5, "ArrowDown"), 5);
  assert.equal(nextPatch(image, 5, "Home"), 4);
  assert.equal(nextPatch(image, 5, "End"), 6);
  assert.equal(nextPatch(image, 0, "ArrowRight"), 1);
  assert.equal(nextPatch(image, 1, "a"), null);
});

test("heat is of the patches, without the tokens before them", () => {
  const { shares, most, sum } = patchShares([0.4, 0.1, 0, 0.2, 0, 0.3, 0], image);
  assert.deepEqual([...shares], [0.1, 0, 0.2, 0, 0.3, 0]);
  assert.equal(most, 0.3);
  assert.ok(Math.abs(sum - 0.6) < 1e-12);
});
