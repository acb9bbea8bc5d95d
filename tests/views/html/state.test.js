/** Links that somebody wrote by hand, and undo. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Data } from "../../../src/regard/views/html/static/core/data.js";
import { validState, initialState } from "../../../src/regard/views/html/static/core/state.js";
import { Store } from "../../../src/regard/views/html/static/core/store.js";

const HEAD = /** @type {import("../../../src/regard/views/html/static/core/data.js").HeadFacts} */ (/** @type {unknown} */ ({ number: 0 }));
const ATTENTION = { queries: 5, keys: 7, heads: [HEAD, HEAD, HEAD] };
const FACTS = /** @type {import("../../../src/regard/views/html/static/core/data.js").Facts} */ (
  /** @type {unknown} */ ({ attentions: [ATTENTION], initial: { attention: 0, head: 1, query: 2 }, context: null })
);
const data = new Data(FACTS, new Uint8Array());
const VIEWS = ["sentence", "map"];

/** @param {object} said */
function followed(said) {
  const store = new Store(initialState(data));
  store.applyLink(`#${encodeURIComponent(JSON.stringify(said))}`, (state) => validState(state, data, VIEWS));
  return store.state;
}

test("a link that fits is followed", () => {
  const said = { view: "map", head: 2, query: 4, key: 6, extraHeads: [0], viewport: [0, 5, 1, 7], threshold: 0.5, edits: { scores: { 3: -2.5 }, scale: 0, temperature: 2, mask: { 0: false }, removedKeys: [1] } };
  assert.deepEqual({ ...followed(said) }, { ...initialState(data), ...said });
});

test("what does not fit is left out, and the rest is followed", () => {
  const wrong = { view: "nothing", attention: 7, head: -1, query: 2.5, key: 7, threshold: Number.NaN, viewport: [0.2, 0.4, 0.2, 0.4], edits: 3 };
  assert.deepEqual(followed({ ...wrong, extraHeads: [2] }), { ...initialState(data), threshold: 0.05, extraHeads: [2] });
  for (const viewport of [[0, 6, 0, 7], [3, 3, 0, 7], [0, 5, 0, 7, 9], "all", [5, 0, 7, 0]]) assert.equal(followed({ viewport }).viewport, null);
});

test("heads and keys that are said twice count once", () => {
  assert.deepEqual(followed({ extraHeads: [2, 2, 0, 2, 1] }).extraHeads, [2, 0]);
  assert.deepEqual(followed({ edits: { removedKeys: [3, 3, "1", null, "", [2], 1.5, 0] } }).edits.removedKeys, [3, 0]);
});

test("edits that would overflow or act on no key are left out", () => {
  const { edits } = followed({ edits: { scale: 1e308, temperature: 1e-320, scores: { 0: 1e7, 1: 5, "1.0": 5, "": 5, 9: 5 }, mask: { " 2": true, 2: true, 3: 1 } } });
  assert.deepEqual(edits, { scores: { 1: 5 }, mask: { 2: true } });
});

test("a link of somebody else's changes nothing", () => {
  const store = new Store(initialState(data));
  for (const link of ["#top", "#%", "#{", "#null", "#7", "#[]"]) store.applyLink(link, (state) => validState(state, data, VIEWS));
  assert.deepEqual(store.state, initialState(data));
});

test("undo takes back an edit, and nothing that was chosen since", () => {
  const store = new Store(initialState(data));
  store.set({ edits: { scale: 0.3 } });
  store.set({ view: "map", threshold: 0.4, viewport: [0, 2, 0, 2] });
  store.undo();
  assert.deepEqual(store.state, { ...initialState(data), view: "map", threshold: 0.4, viewport: [0, 2, 0, 2] });
  assert.equal(store.undoable, false);
});

test("the edits of a row come back where another row was chosen", () => {
  const store = new Store(initialState(data));
  store.set({ edits: { scale: 0.3 } });
  store.set({ query: 3 });
  assert.deepEqual(store.state.edits, {});
  store.undo();
  assert.deepEqual([store.state.query, store.state.edits], [2, { scale: 0.3 }]);
});
