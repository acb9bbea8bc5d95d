/** What the view of the sentence picks out and says. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { nearestRange, topLines, topWeights } from "../../../src/regard/views/html/static/sentence/topk.js";
import { quotedToken } from "../../../src/regard/views/html/static/sentence/model.js";
import { roleBesideFocus } from "../../../src/regard/views/html/static/sentence/layouts.js";
import { remainderText } from "../../../src/regard/views/html/static/sentence/toplist.js";

test("the largest weights come largest first, equal ones in their order, zeros and unknown ones not at all", () => {
  assert.deepEqual(
    topWeights([0.1, 0.4, 0, 0.1, NaN, 0.3], 3).map(({ index }) => index),
    [1, 5, 0],
  );
  assert.deepEqual(topWeights([0.1, 0.4, 0, 0.1, NaN, 0.3], 9).map(({ index }) => index), [1, 5, 0, 3]);
  assert.deepEqual(topWeights([0, 0], 3), []);
});

test("the weakest lines are left out and counted, the strongest are drawn last", () => {
  const found = [0.2, 0.9, 0.1, 0.5].map((weight, query) => ({ head: 0, query, key: 0, weight }));
  const { lines, left } = topLines(found, 3);
  assert.deepEqual(lines.map(({ weight }) => weight), [0.2, 0.5, 0.9]);
  assert.equal(left, 1);
  assert.equal(topLines(found, 4).left, 0);
});

test("the nearest rows lie around one, within the range", () => {
  assert.deepEqual(nearestRange([10, 20], 15, 100), [10, 20]);
  assert.deepEqual(nearestRange([10, 20], 15, 4), [13, 17]);
  assert.deepEqual(nearestRange([10, 20], 3, 4), [10, 14]);
  assert.deepEqual(nearestRange([10, 20], 99, 4), [16, 20]);
  assert.deepEqual(nearestRange([10, 20], 15, 0), [15, 15]);
});

test("in one line the others are what a query looks at, or what looks at a key", () => {
  const query = { side: /** @type {const} */ ("query"), index: 1 };
  assert.deepEqual(roleBesideFocus(query, 4, 3), query);
  assert.deepEqual(roleBesideFocus(query, 1, 3), { side: "key", index: 1 });
  const key = { side: /** @type {const} */ ("key"), index: 2 };
  assert.deepEqual(roleBesideFocus(key, 2, 3), key);
  assert.deepEqual(roleBesideFocus(key, 5, 3), { side: "query", index: 2 });
  assert.deepEqual(roleBesideFocus(key, 1, 3), { side: "key", index: 1 }, "before the first query there are keys only");
});

test("long tokens are cut by letters, not within one", () => {
  assert.equal(quotedToken("bank"), "'bank'");
  assert.equal(quotedToken("𝒳".repeat(60)), `'${"𝒳".repeat(40)}…'`);
  assert.equal(quotedToken(""), "'∅'");
});

test("what a list leaves out is said with the sink, and with the queries that are not carried", () => {
  const row = { side: /** @type {const} */ ("query"), index: 0 };
  const column = { side: /** @type {const} */ ("key"), index: 0 };
  assert.equal(remainderText([0.5, 0.3, 0.2], [{ weight: 0.5 }], row, null), "All other 2 keys together: 50.0 %.");
  assert.equal(remainderText([0.5, 0.3], [{ weight: 0.5 }, { weight: 0.3 }], row, 1), "These are all keys. The head's own sink takes 20.0 %.");
  assert.equal(remainderText([0, 0], [], row, null), "This query may attend to nothing: its weights are 0.");
  assert.equal(remainderText([0.4, NaN, 0.2], [], column, null), "It gets 30.0 % of a query's attention on average. Of 3 queries, 2 are in this page.");
});
