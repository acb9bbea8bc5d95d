import assert from "node:assert/strict";
import { test } from "node:test";

import { wordsByChange, cosineScale, firstSentence, fitPoints, labelText, labelWidth, placeLabels, spreadLabels, wordChange } from "../../../src/regard/views/html/static/context/plotting.js";

// A word in sentences 0 and behind, by its cosines after the last layer.
/** @param {...number} last */
function word(...last) {
  const track = /** @type {[number, number][]} */ ([[0, 0], [1, 1]]);
  return { word: "w", cosines: last.map((cosine, i) => ({ sentence: i + 1, cosine: [1, cosine] })), points: [track, ...last.map(() => track)] };
}

/** @typedef {[number, number]} Point */

test("a word's change is that of the sentence which changes it most, and orders the list", () => {
  assert.deepEqual([wordChange(word(0.9, 0.25, 0.5)), wordChange(word(1.0000001))], [0.75, 0]);
  assert.deepEqual(wordsByChange([word(0.9), word(0.25), word(0.5, 0.1), word(0.9)]), [2, 1, 0, 3]);
});

test("the others are compared with the first sentence that the word stands in", () => {
  assert.equal(firstSentence(word(1)), 0);
  assert.equal(firstSentence({ word: "w", cosines: [], points: [null, null, [[0, 0]], [[1, 1]]] }), 2);
});

test("a scale of cosines ends at 1, begins at a round number, and holds them all", () => {
  for (const least of [0.99, 0.951, 0.95, 0.9, 0.84, 0.5, 0.3, 0, -0.2, -1]) {
    const { low, ticks, digits } = cosineScale([1, least, 0.999]);
    assert.ok(low <= least + 1e-9 && low >= -1.5, `${least}: ${low}`);
    assert.ok(ticks.length >= 2 && ticks.length <= 7, `${least}: ${ticks.length}`);
    assert.ok(Math.abs(Number(ticks[0]) - low) < 1e-9 && Math.abs(Number(ticks.at(-1)) - 1) < 1e-9);
    for (const tick of ticks) assert.ok(Math.abs(Number(tick.toFixed(digits)) - tick) < 1e-9, "a tick is what is written beside it");
  }
});

test("labels keep their order and their distance, above the bottom, and stay where there is room", () => {
  assert.deepEqual(spreadLabels([10, 50, 90], 16, 100), [10, 50, 90]);
  const placed = spreadLabels([95, 90, 96, 20], 16, 100);
  assert.equal(placed[3], 20);
  const sorted = placed.toSorted((a, b) => a - b);
  sorted.slice(1).forEach((at, i) => assert.ok(at - Number(sorted[i]) >= 16));
  assert.ok(Math.max(...placed) <= 100);
  assert.ok(Number(placed[1]) < Number(placed[0]) && Number(placed[0]) < Number(placed[2]));
});

test("a plane is drawn whole, with up above", () => {
  const spots = fitPoints([[0, 0], [4, 0], [4, 1], [-2, 3]], { width: 300, height: 200, margin: 20 });
  for (const [x, y] of spots) assert.ok(x >= 20 - 1e-9 && x <= 280 + 1e-9 && y >= 20 - 1e-9 && y <= 180 + 1e-9);
  assert.ok(Number(spots[3]?.[1]) < Number(spots[0]?.[1]));
  assert.deepEqual(fitPoints([[5, 5], [5, 5]], { width: 300, height: 200, margin: 20 }), [[150, 100], [150, 100]]);
});

test("labels of dots touch neither one another nor a dot nor the edge; the first ones have the choice", () => {
  const size = { width: 320, height: 240 };
  /** @type {Point[]} */
  const dots = Array.from({ length: 90 }, (_, i) => [8 + ((i * 73) % 304), 8 + ((i * 131) % 224)]);
  const texts = dots.map((_, i) => `word ${i}`);
  const placed = placeLabels(dots, texts, size, 3);
  assert.ok(placed.slice(0, 3).every(Boolean), "the chosen word's labels are there");
  const boxes = placed.flatMap((at, i) => {
    if (!at) return [];
    const [x, y] = [Number(dots[i]?.[0]) + at[0], Number(dots[i]?.[1]) + at[1]];
    return [{ i, left: x, right: x + labelWidth(`word ${i}`), top: y - 11, bottom: y + 3 }];
  });
  assert.ok(boxes.length > 10 && boxes.length < 90);
  for (const a of boxes) {
    assert.ok(a.left >= 0 && a.right <= 320 && a.top >= 0 && a.bottom <= 240);
    for (const b of boxes) assert.ok(a === b || a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top);
    dots.forEach(([x, y], j) => {
      if (a.i >= 3 && j !== a.i) assert.ok(x + 5 <= a.left || x - 5 >= a.right || y + 5 <= a.top || y - 5 >= a.bottom);
    });
  }
});

test("a long label is cut between characters, not within one", () => {
  assert.equal(labelText("bank"), "bank");
  assert.equal(labelText("😀".repeat(30)), `${"😀".repeat(17)}…`);
});
