import assert from "node:assert/strict";
import { test } from "node:test";

import { Asking } from "../../../src/regard/views/html/static/live/asking.js";
import { movedIndex } from "../../../src/regard/views/html/static/live/carry.js";
import { Changes } from "../../../src/regard/views/html/static/live/changes.js";

/** A model that takes as long as a question says, in milliseconds, and what became of its questions. @param {number} grace */
function asked(grace) {
  /** @type {string[]} */
  const events = [];
  /** @type {Asking<number, number>} */
  const asking = new Asking({
    ask: async (question, signal) => {
      await new Promise((resolve) => setTimeout(resolve, question));
      if (question < 0) throw new Error("below 0");
      signal.throwIfAborted();
      return question;
    },
    onAnswer: (_, answer) => events.push(`answer ${answer}`),
    onError: (_, error) => events.push(`error ${error instanceof Error ? error.message : error}`),
    onBusy: (busy) => events.push(busy ? "busy" : "idle"),
    grace,
  });
  return { asking, events };
}

/** @param {number} time */
const after = (time) => new Promise((resolve) => setTimeout(resolve, time));

test("of questions that wait only the newest is answered", async () => {
  const { asking, events } = asked(1000);
  for (const question of [20, 21, 22, 23]) asking.ask(question);
  await after(150);
  assert.deepEqual(events, ["busy", "answer 20", "answer 23", "idle"]);
});

test("an older question that takes longer than the grace is aborted", async () => {
  const { asking, events } = asked(10);
  asking.ask(60);
  await after(5);
  asking.ask(20);
  await after(200);
  assert.deepEqual(events, ["busy", "answer 20", "idle"]);
});

test("an error is told and ends nothing", async () => {
  const { asking, events } = asked(1000);
  asking.ask(-1);
  asking.ask(1);
  await after(60);
  assert.deepEqual(events, ["busy", "error below 0", "answer 1", "idle"]);
});

test("what is cancelled is neither answered nor an error", async () => {
  const { asking, events } = asked(1000);
  asking.ask(20);
  asking.ask(30);
  asking.cancel();
  await after(80);
  assert.deepEqual(events, ["busy", "idle"]);
});

test("a token that stays is found again behind an insertion and before it", () => {
  const [before, after_] = [["[CLS]", "a", "bank", "[SEP]"], ["[CLS]", "a", "river", "bank", ".", "[SEP]"]];
  assert.deepEqual([0, 1, 2, 3].map((index) => movedIndex(index, before, after_)), [0, 1, 3, 5]);
  assert.deepEqual([0, 3, 5].map((index) => movedIndex(index, after_, before)), [0, 2, 3]);
  assert.equal(movedIndex(3, ["a", "b", "c", "d"], ["x"]), 0);
});

test("a token of the part that changed is found at the nearest place that has it", () => {
  const before = "[CLS] the child saw the dog and ran [SEP]".split(" ");
  const after_ = "[CLS] a big dog chased the old dog today [SEP]".split(" ");
  assert.deepEqual([4, 5].map((index) => movedIndex(index, before, after_)), [5, 3]);
  assert.equal(movedIndex(2, ["A", " big", " dog", " ran"], ["dog", "s", " bark"]), 0);
});

test("a token that is gone leaves the row in the part that changed and not at the end", () => {
  const before = "[CLS] a bank of the river [SEP]".split(" ");
  const moved = (/** @type {number} */ index, /** @type {string} */ text) => movedIndex(index, before, text.split(" "));
  assert.equal(moved(4, "[CLS] a boat [SEP]"), 2);
  assert.equal(moved(5, "[CLS] a bank of the [SEP]"), 4);
  assert.equal(moved(3, "[CLS] a bank the river [SEP]"), 3);
  assert.equal(moved(5, "[CLS] [SEP]"), 0);
});

test("a row has its own edits, or those of all rows of its head", () => {
  const changes = new Changes();
  changes.setEdits(1, 2, 7, { temperature: 2 });
  assert.deepEqual([changes.ofRow(1, 2, 7)?.edits, changes.ofRow(1, 2, 8)], [{ temperature: 2 }, null]);
  const [edit] = changes.list;
  assert.ok(edit);
  changes.setEdits(1, 2, 8, { scale: 1 });
  changes.setRows(edit, null);
  assert.deepEqual(changes.list, [{ attention: 1, head: 2, query: null, off: false, edits: { temperature: 2 } }]);
  assert.deepEqual(changes.ofRow(1, 2, 8)?.edits, { temperature: 2 });
  changes.setEdits(1, 2, 3, {});
  assert.deepEqual(changes.list, []);
});

test("a head is off until it is switched on, whatever the edits of its rows", () => {
  const changes = new Changes();
  changes.setEdits(0, 3, 1, { temperature: 2 });
  changes.toggleHead(0, 3);
  assert.deepEqual([changes.isOff(0, 3), changes.isOff(0, 2), changes.list.length], [true, false, 2]);
  changes.toggleHead(0, 3);
  assert.deepEqual([changes.isOff(0, 3), changes.list.length], [false, 1]);
});

test("another text keeps the changes that name no token", () => {
  const changes = new Changes();
  changes.toggleHead(0, 3);
  changes.setEdits(1, 0, 4, { temperature: 2 });
  changes.setEdits(2, 0, 4, { temperature: 3 });
  changes.setRows(/** @type {import("../../../src/regard/views/html/static/live/engine.js").ModelEdit} */ (changes.ofRow(2, 0, 4)), null);
  changes.setEdits(3, 0, 4, { mask: { 1: false } });
  changes.setRows(/** @type {import("../../../src/regard/views/html/static/live/engine.js").ModelEdit} */ (changes.ofRow(3, 0, 4)), null);
  changes.keepForAnyText();
  assert.deepEqual(changes.list.map(({ attention, off }) => [attention, off]), [[0, true], [2, false]]);
});

test("a listener is told of each change until its signal ends", () => {
  const changes = new Changes();
  const ending = new AbortController();
  let told = 0;
  changes.subscribe(() => (told += 1), ending.signal);
  changes.toggleHead(0, 0);
  assert.deepEqual([told, changes.pending], [1, true]);
  changes.answer(null);
  assert.deepEqual([told, changes.pending], [2, false]);
  ending.abort();
  changes.clear();
  assert.equal(told, 2);
});
