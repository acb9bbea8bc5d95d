/** The worker of a page that carries its model: its messages, each question computed on its own. */

import { PageModel } from "./page_model.js";

/** @typedef {import("../live/engine.js").Answer} Answer */
/** @typedef {import("../live/engine.js").EffectQuestion} EffectQuestion */
/** @typedef {import("../live/engine.js").Question} Question */
/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("./page_model.js").ModelSettings} ModelSettings */

/**
 * @typedef {{kind: "weights", part: string}
 *   | {kind: "start", settings: ModelSettings}
 *   | {kind: "ask", id: number, question: Question}
 *   | {kind: "effects", id: number, question: EffectQuestion}
 *   | {kind: "cancel", id: number}} ToWorker
 */

/**
 * @typedef {{kind: "ready"}
 *   | {kind: "broken", message: string}
 *   | {kind: "progress", id: number, done: number, total: number, sofar: EffectFacts | null}
 *   | {kind: "answer", id: number, answer: Answer | EffectFacts}
 *   | {kind: "error", id: number, name: string, message: string}} FromWorker
 */

/** Milliseconds between two messages on effects that grow: the page draws no faster. */
const TELLING = 150;

/** The weights, part by part. @type {string[]} */
const parts = [];
/** @type {PageModel | null} */
let model = null;
/** @type {Map<number, AbortController>} */
const underWay = new Map();

/** @param {FromWorker} message */
const send = (message) => postMessage(message);

addEventListener("message", ({ data }) => receive(data));

/** @param {ToWorker} message */
function receive(message) {
  if (message.kind === "weights") parts.push(message.part);
  else if (message.kind === "start") void start(message.settings);
  else if (message.kind === "cancel") underWay.get(message.id)?.abort();
  else void compute(message);
}

/** @param {ModelSettings} settings */
async function start(settings) {
  try {
    model = await PageModel.create(settings, parts.splice(0).join(""));
    send({ kind: "ready" });
  } catch (error) {
    send({ kind: "broken", message: error instanceof Error ? error.message : String(error) });
  }
}

/** @param {Extract<ToWorker, {kind: "ask" | "effects"}>} message */
async function compute(message) {
  const { id } = message;
  const controller = new AbortController();
  underWay.set(id, controller);
  const breathe = breath(controller.signal);
  try {
    if (!model) throw new Error("the model is not there yet");
    const answer = message.kind === "ask" ? await model.ask(message.question, breathe) : await effects(model, id, message.question, breathe);
    if (!controller.signal.aborted) send({ kind: "answer", id, answer });
  } catch (error) {
    const { name, message: text } = error instanceof Error ? error : new Error(String(error));
    if (!controller.signal.aborted) send({ kind: "error", id, name, message: text });
  }
  underWay.delete(id);
}

/**
 * @param {PageModel} ready
 * @param {number} id
 * @param {EffectQuestion} question
 * @param {() => Promise<void>} breathe
 */
async function effects(ready, id, question, breathe) {
  let told = 0;
  return ready.effects(question, breathe, (done, total, sofar) => {
    if (performance.now() - told < TELLING) return;
    told = performance.now();
    send({ kind: "progress", id, done, total, sofar });
  });
}

/**
 * A function that lets messages in, and ends a work that was cancelled.
 * @param {AbortSignal} signal
 */
function breath(signal) {
  const channel = new MessageChannel(); // a timer would wait for 4 ms each time
  return async () => {
    await new Promise((next) => {
      channel.port1.onmessage = next;
      channel.port2.postMessage(null);
    });
    signal.throwIfAborted();
  };
}
