/** The engine whose model runs in `regard live`: each question is a POST, and its answer a stream of events. */

import { readEvents } from "./event_stream.js";

/** @typedef {import("./engine.js").Answer} Answer */
/** @typedef {import("./engine.js").Engine} Engine */
/** @typedef {import("./engine.js").EffectFacts} EffectFacts */
/** @typedef {import("./engine.js").EffectQuestion} EffectQuestion */
/** @typedef {import("./engine.js").GenerateQuestion} GenerateQuestion */
/** @typedef {import("./engine.js").ModelFacts} ModelFacts */
/** @typedef {import("./engine.js").Question} Question */
/** @typedef {import("./engine.js").Waiting} Waiting */
/** @typedef {import("./engine.js").WrittenToken} WrittenToken */
/** @typedef {Waiting & {onToken?: (token: WrittenToken) => void}} Listening */

/** An answer over HTTP: its numbers are base64. */
/** @typedef {Omit<Answer, "texts"> & {texts: (Omit<Answer["texts"][number], "numbers"> & {numbers: string})[]}} EncodedAnswer */

const GONE = "The server of this page does not answer: regard live has ended, or the connection was cut. Start it again, and open the address that it prints; if it runs, ask again.";
const MOVED = "The server that answers here does not know this page's address: regard live was started anew. Open the address that it printed.";

/** Why there is no answer, in words for the reader. */
export class EngineError extends Error {
  /**
   * @param {string} name of the error, such as "ServerGone" or one that the server gives
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(name, message, options) {
    super(message, options);
    this.name = name;
  }
}

/**
 * Speaks to the server that the page came from. Where it is gone, the next question tries again.
 * @implements {Engine}
 */
export class ServerEngine {
  /** Long work, which a reader who types another text waits for no more. @type {Set<{abort: AbortController, ends: (question: Question) => boolean}>} */
  #work = new Set();

  /**
   * @param {ModelFacts} model
   * @param {string | URL} address of the page; it ends with a slash
   * @param {typeof fetch} [send]
   */
  constructor(model, address, send = (...request) => fetch(...request)) {
    this.model = model;
    this.address = address;
    this.send = send;
  }

  /**
   * @param {Question} question
   * @param {Waiting} [waiting]
   * @returns {Promise<Answer>}
   */
  async ask(question, waiting = {}) {
    for (const { abort, ends } of this.#work) if (ends(question)) abort.abort(new DOMException("Another question came first.", "AbortError"));
    return decodeAnswer(await this.#post("ask", question, waiting));
  }

  /**
   * @param {EffectQuestion} question
   * @param {Waiting} [waiting]
   * @returns {Promise<EffectFacts>}
   */
  effects(question, waiting = {}) {
    const isOther = (/** @type {Question} */ { texts }) => texts.join("\n") !== question.texts.join("\n");
    return this.#long(isOther, waiting, (all) => this.#post("effects", question, all));
  }

  /**
   * @param {GenerateQuestion} question
   * @param {Waiting & {onToken: (token: WrittenToken) => void}} waiting
   * @returns {Promise<Answer>}
   */
  async generate(question, waiting) {
    return decodeAnswer(await this.#long(() => true, waiting, (all) => this.#post("generate", question, all)));
  }

  /**
   * Work that another question may end: the model answers one after the other, and that one would wait for it.
   * @template {Listening} Waits
   * @param {(question: Question) => boolean} ends
   * @param {Waits} waiting
   * @param {(waiting: Waits) => Promise<any>} work
   */
  async #long(ends, waiting, work) {
    const abort = new AbortController();
    const entry = { abort, ends };
    if (waiting.signal?.aborted) abort.abort(waiting.signal.reason);
    waiting.signal?.addEventListener("abort", () => abort.abort(waiting.signal?.reason));
    this.#work.add(entry);
    try {
      return await work({ ...waiting, signal: abort.signal });
    } finally {
      this.#work.delete(entry);
    }
  }

  /**
   * What the event "answer" brings.
   * @param {string} path
   * @param {object} question
   * @param {Listening} waiting
   * @returns {Promise<any>}
   * @throws {EngineError | DOMException} the server's error, no answer, or an AbortError
   */
  async #post(path, question, { signal, ...listeners }) {
    for await (const event of this.#events(path, question, signal)) {
      signal?.throwIfAborted(); // what had arrived before is no longer wanted
      if (event.name === "answer") return parse(event.data);
      report(event, listeners);
    }
    throw new EngineError("ServerGone", GONE); // the stream ended without an answer
  }

  /**
   * @param {string} path
   * @param {object} question
   * @param {AbortSignal | undefined} signal
   */
  async *#events(path, question, signal) {
    const request = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question), signal: signal ?? null };
    try {
      const response = await this.send(new URL(path, this.address), request);
      if (!response.ok || !response.body) throw await refusal(response);
      yield* readEvents(response.body);
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof EngineError) throw error;
      throw new EngineError("ServerGone", GONE, { cause: error }); // fetch and its stream say TypeError for all of it
    }
  }
}

/**
 * What the server's model is.
 * @param {string | URL} address of the page; it ends with a slash
 * @returns {Promise<ModelFacts>}
 * @throws {EngineError} there is no server
 */
export async function readModel(address) {
  try {
    const response = await fetch(new URL("model", address));
    if (!response.ok) throw await refusal(response);
    return await response.json();
  } catch (error) {
    throw error instanceof EngineError ? error : new EngineError("ServerGone", GONE, { cause: error });
  }
}

/**
 * Tells the listeners what an event says.
 * @param {import("./event_stream.js").ServerEvent} event
 * @param {Omit<Listening, "signal">} listeners
 */
function report({ name, data }, { onQueue, onProgress, onToken }) {
  const facts = parse(data);
  if (name === "error") throw new EngineError(String(facts.name), String(facts.message));
  if (name === "queue") onQueue?.(facts.place);
  else if (name === "progress") onProgress?.(facts.done, facts.total, facts.sofar ?? null);
  else if (name === "token") onToken?.(facts);
}

/** @param {string} data */
function parse(data) {
  try {
    return JSON.parse(data);
  } catch (error) {
    throw new EngineError("BadAnswer", "The server's answer cannot be read. Reload the page; if that does not help, start regard live again.", { cause: error });
  }
}

/**
 * The error of a response that is no stream: the server's own words where it gives them.
 * @param {Response} response
 */
async function refusal(response) {
  const text = await response.text();
  try {
    const { name, message } = JSON.parse(text);
    if (typeof message === "string") return new EngineError(String(name), message);
  } catch {
    // something else stands between the page and its server
  }
  if (response.status === 403 || response.status === 404) return new EngineError("ServerGone", MOVED);
  return new EngineError("Refused", `The server refused the question with status ${response.status}${text ? `: ${text.slice(0, 200)}` : ""}.`);
}

/**
 * @param {EncodedAnswer} answer
 * @returns {Answer}
 */
function decodeAnswer(answer) {
  return { ...answer, texts: answer.texts.map((text) => ({ ...text, numbers: decodeBase64(text.numbers) })) };
}

/**
 * The bytes of a base64 text.
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function decodeBase64(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
