/** The engine of a page that carries its model: a worker computes, and this speaks to it. */

/** @typedef {import("./engine.js").Answer} Answer */
/** @typedef {import("./engine.js").EffectQuestion} EffectQuestion */
/** @typedef {import("./engine.js").ModelFacts} ModelFacts */
/** @typedef {import("./engine.js").Question} Question */
/** @typedef {import("./engine.js").Waiting} Waiting */
/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("../model/worker.js").FromWorker} FromWorker */
/** @typedef {import("../model/worker.js").ModelSettings} ModelSettings */
/** @typedef {import("../model/worker.js").ToWorker} ToWorker */

/**
 * A question that is under way.
 * @typedef {object} Call
 * @property {(value: any) => void} resolve
 * @property {(error: unknown) => void} reject
 * @property {Waiting} waiting
 */

/**
 * What the page carries for its worker.
 * @typedef {object} WorkerParts
 * @property {ModelFacts} model
 * @property {string} script of the worker
 * @property {ModelSettings} settings
 * @property {string[]} weights seven bits a character, in parts that are short enough to hold no frame up
 */

export class WorkerEngine {
  /** @type {Map<number, Call>} */
  #calls = new Map();
  #count = 0;
  /** @type {Worker | null} */
  #worker = null;
  /** Why the worker answers no more. @type {Error | null} */
  #broken = null;
  /** Told when the worker is ready, or cannot be. @type {Pick<Call, "resolve" | "reject">} */
  #starting = { resolve: () => {}, reject: () => {} };

  /** @param {WorkerParts} parts */
  constructor(parts) {
    this.model = parts.model;
    /** When the model can be asked; rejected where it cannot be started. @type {Promise<void>} */
    this.ready = new Promise((resolve, reject) => {
      this.#starting = { resolve, reject: (error) => reject(new Error(`The model cannot run here: ${errorText(error)}.`)) };
    });
    this.#start(parts).catch((error) => this.#starting.reject(error));
  }

  /**
   * @param {Question} question
   * @param {Waiting} [waiting]
   * @returns {Promise<Answer>}
   */
  ask(question, waiting = {}) {
    return this.#call({ kind: "ask", question }, waiting);
  }

  /**
   * @param {EffectQuestion} question
   * @param {Waiting} [waiting]
   * @returns {Promise<EffectFacts>}
   */
  effects(question, waiting = {}) {
    return this.#call({ kind: "effects", question }, waiting);
  }

  /** @param {WorkerParts} parts */
  async #start({ script, settings, weights }) {
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const worker = new Worker(address);
    this.#worker = worker;
    worker.addEventListener("message", (event) => this.#answer(event.data));
    worker.addEventListener("error", (event) => this.#fail(new Error(event.message || "no worker can be started, as in a frame that is closed to them")));
    for (const part of weights) {
      this.#post({ kind: "weights", part });
      await new Promise((next) => setTimeout(next));
    }
    this.#post({ kind: "start", settings });
  }

  /** @param {ToWorker} message */
  #post(message) {
    this.#worker?.postMessage(message);
  }

  /**
   * @param {{kind: "ask", question: Question} | {kind: "effects", question: EffectQuestion}} message
   * @param {Waiting} waiting
   * @returns {Promise<any>}
   */
  async #call(message, waiting) {
    await this.ready;
    if (this.#broken) throw this.#broken;
    const { signal } = waiting;
    signal?.throwIfAborted();
    const id = ++this.#count;
    const cancel = () => {
      this.#post({ kind: "cancel", id });
      this.#end(id)?.reject(signal?.reason);
    };
    signal?.addEventListener("abort", cancel, { once: true });
    try {
      return await new Promise((resolve, reject) => {
        this.#calls.set(id, { resolve, reject, waiting });
        this.#post({ ...message, id });
      });
    } finally {
      signal?.removeEventListener("abort", cancel);
    }
  }

  /** @param {FromWorker} message */
  #answer(message) {
    if (message.kind === "ready") this.#starting.resolve(undefined);
    else if (message.kind === "broken") this.#starting.reject(new Error(message.message));
    else if (message.kind === "progress") this.#calls.get(message.id)?.waiting.onProgress?.(message.done, message.total, message.sofar);
    else if (message.kind === "error") this.#end(message.id)?.reject(Object.assign(new Error(message.message), { name: message.name }));
    else this.#end(message.id)?.resolve(message.answer);
  }

  /** @param {number} id */
  #end(id) {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    return call;
  }

  /** @param {Error} error */
  #fail(error) {
    this.#broken = error;
    this.#starting.reject(error);
    for (const call of this.#calls.values()) call.reject(error);
    this.#calls.clear();
  }
}

/** @param {unknown} error */
function errorText(error) {
  return (error instanceof Error ? error.message : String(error)).replace(/\.$/, "");
}
