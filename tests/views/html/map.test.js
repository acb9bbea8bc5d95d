/** Areas of a map, its marks and margins, and exact weights in cells of several. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { expandViewport, panTo, axisTicks, containsViewport, panViewport, zoomViewport } from "../../../src/regard/views/html/static/map/viewport.js";
import { tile } from "../../../src/regard/views/html/static/core/attention.js";
import { cellsRect, mapLayout, tokenAt } from "../../../src/regard/views/html/static/map/layout.js";
import { binMeans, sumCells } from "../../../src/regard/views/html/static/map/margins.js";
import { colourShare, roundUp } from "../../../src/regard/views/html/static/map/raster.js";
import { isAffordable, LazyWeights, countRows } from "../../../src/regard/views/html/static/map/lazyweights.js";
import { close, small } from "./small.js";

const MAP = { queries: 100, keys: 200 };

test("zooming keeps the point where it is and stays in the map", () => {
  assert.deepEqual(zoomViewport([0, 100, 0, 200], 0.5, { query: 50, key: 100 }, MAP), [25, 75, 50, 150]);
  assert.deepEqual(zoomViewport([0, 100, 0, 200], 0.5, { query: 0, key: 200 }, MAP), [0, 50, 100, 200]);
  assert.deepEqual(zoomViewport([10, 60, 0, 100], 2, { query: 60, key: 0 }, MAP), [0, 100, 0, 200]);
});

test("zooming in ends at four tokens, or at all there are, and every step before changes something", () => {
  let viewport = zoomViewport([0, 100, 0, 200], 0.9, { query: 1, key: 199 }, MAP);
  for (let i = 0; i < 200; i++) viewport = zoomViewport(viewport, 0.999, { query: 1, key: 199 }, MAP);
  assert.deepEqual(viewport, [0, 4, 196, 200]);
  assert.deepEqual(zoomViewport([0, 2, 0, 9], 0.01, { query: 1, key: 1 }, { queries: 2, keys: 9 }), [0, 2, 1, 5]);
});

test("an area moves no farther than the edges, nor than it must to show a cell", () => {
  assert.deepEqual(panViewport([10, 20, 10, 20], -50, 500, MAP), [0, 10, 190, 200]);
  assert.deepEqual(panTo([10, 20, 10, 20], { query: 9, key: 20 }, MAP), [9, 19, 11, 21]);
  assert.deepEqual(panTo([10, 20, 10, 20], { query: 15, key: 15 }, MAP), [10, 20, 10, 20]);
});

test("what lies around an area ends with the map", () => {
  assert.deepEqual(expandViewport([0, 20, 180, 200], MAP), [0, 30, 170, 200]);
  assert.ok(containsViewport([0, 30, 170, 200], [0, 20, 180, 200]));
  assert.ok(!containsViewport([0, 30, 170, 200], [0, 31, 180, 200]));
});

test("ticks are round, and not too many", () => {
  assert.deepEqual(axisTicks(0, 5, 5), [0, 1, 2, 3, 4]);
  assert.deepEqual(axisTicks(7, 31, 6), [10, 15, 20, 25, 30]);
  assert.deepEqual(axisTicks(0, 32768, 4), [0, 10000, 20000, 30000]);
});

test("a point of the drawing is a query and a key, and its box is there again", () => {
  const layout = mapLayout(800, 600, [10, 20, 40, 60], MAP, { queries: 50, keys: 40 });
  const box = cellsRect(layout, [13, 14, 44, 45], 0);
  const found = tokenAt(layout, box.x + box.w / 2, box.y + box.h / 2);
  assert.deepEqual([Math.floor(Number(found?.query)), Math.floor(Number(found?.key))], [13, 44]);
  assert.equal(tokenAt(layout, layout.x - 1, layout.y + 5), null);
  assert.ok(layout.x + layout.wide + layout.side <= 800);
});

test("sums of a map: entropy in nats, and received in fair shares, of single tokens and of cells", () => {
  const { entropy, received } = sumCells(Float32Array.of(0.5, 0.5, 0, 1), 2, 2, 2, 2);
  close(entropy, [Math.log(2), 0], 1e-6);
  close(received, [0.5, 1.5], 1e-6);
  const cells = sumCells(Float32Array.of(0.25, 0.75, 1, 0), 2, 2, 5, 7).received;
  close([cells.length, cells.reduce((a, b) => a + b, 0) / 7], [7, 1], 1e-6);
});

test("bars are means, and of nothing known nothing", () => {
  close(binMeans(Float32Array.of(9, 1, 3, NaN, 5, NaN, NaN), 1, 7, 3), [2, 5, NaN], 1e-6);
});

test("colours rise with the square root, up to a round share", () => {
  assert.equal(colourShare(0.25, 1), 0.5);
  assert.equal(colourShare(2, 1), 1);
  assert.equal(colourShare(1, 0), 0);
  assert.deepEqual([0.34, 0.2, 0.011, 1, 0].map(roundUp), [0.5, 0.2, 0.02, 1, 1]);
});

/** @type {(head: import("./small.js").Head, ...viewport: [number, number, number, number]) => LazyWeights} */
function computed(head, ...viewport) {
  const lazyWeights = new LazyWeights(head);
  lazyWeights.request(viewport);
  assert.ok(lazyWeights.compute(1000));
  return lazyWeights;
}

test("exact weights are those of a tile, and a cell of several sums keys and averages queries", () => {
  const weights = tile(small(), 0, 2, 0, 3);
  const lazyWeights = computed(small(), 0, 1, 0, 2);
  close(lazyWeights.allWeights, Array.from(weights), 1e-7);
  assert.equal(lazyWeights.weightAt(1, 2), weights[5]);
  const pooled = lazyWeights.pooled([0, 2, 0, 3], 2, 2);
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0] = weights;
  close(pooled.cells, [(a + b + d + e) / 2, (c + f) / 2], 1e-6);
  assert.deepEqual([pooled.rows, pooled.columns], [1, 2]);
});

test("rows that are not carried are not known, and count for nothing", () => {
  const head = small({ q: Float32Array.of(4, -1), rows: Float32Array.of(1), lse: Float32Array.of(Math.log(Math.exp(2) + Math.exp(-0.5) + Math.exp(1.5))) });
  assert.deepEqual([countRows(head, [0, 2, 0, 3]), countRows(head, [0, 1, 0, 3])], [1, 0]);
  const lazyWeights = computed(head, 0, 2, 0, 3);
  assert.ok(Number.isNaN(lazyWeights.weightAt(0, 1)));
  close(lazyWeights.pooled([0, 2, 0, 3], 2, 1).cells, Array.from(tile(small(), 1, 2, 0, 3)), 1e-6);
  assert.equal(lazyWeights.allWeights, null);
});

test("an area that is too large is not begun with", () => {
  const keys = 32768;
  const head = small({ queries: keys, keys, lse: new Float32Array(keys) });
  assert.ok(isAffordable(head, [0, 2048, 0, 2048]));
  assert.ok(!isAffordable(head, [0, 2049, 0, 2048]));
  assert.ok(!isAffordable({ ...head, lse: null }, [0, 2048, 0, 2048]));
});
