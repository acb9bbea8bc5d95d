/** A text that is being written, token by token. The views come and go with each answer; this stays. */

/** @typedef {import("../live/engine.js").Answer} Answer */
/** @typedef {import("../live/engine.js").Engine} Engine */
/** @typedef {import("../live/engine.js").GenerateQuestion} GenerateQuestion */
/** @typedef {import("../live/engine.js").WrittenToken} WrittenToken */

export class WritingRun {
  /** @type {WrittenToken[]} */
  tokens = [];
  /** Stopped by the reader, or interrupted by another question. @type {"writing" | "done" | "stopped" | "interrupted" | "failed"} */
  state = "writing";
  /** How many questions of others come first. */
  place = 0;
  /** Why it failed. */
  error = "";
  #abort = new AbortController();
  /** @type {() => void} */
  #listener = () => {};

  /** @param {GenerateQuestion} question */
  constructor(question) {
    this.question = question;
  }

  /** The whole text so far. */
  get text() {
    return this.question.text + this.tokens.map(({ text }) => text).join("");
  }

  /**
   * The text before a written token.
   * @param {number} index
   */
  textBefore(index) {
    return this.question.text + this.tokens.slice(0, index).map(({ text }) => text).join("");
  }

  /**
   * Whether a text is the one that this run began with, or that it has written.
   * @param {string} text
   */
  belongsTo(text) {
    return text === this.question.text || text === this.text;
  }

  /**
   * Writes until the model ends, the tokens are as many as asked for, or `stop`.
   * @param {Engine} engine
   * @returns {Promise<Answer | null>} of the whole text; null where it was stopped or failed
   */
  async start(engine) {
    try {
      const answer = await /** @type {Required<Engine>} */ (engine).generate(this.question, {
        signal: this.#abort.signal,
        onQueue: (place) => this.#change(() => (this.place = place)),
        onToken: (written) => this.#change(() => this.tokens.push(written)),
      });
      this.#change(() => (this.state = "done"));
      return answer;
    } catch (error) {
      if (this.#abort.signal.aborted) return null;
      this.#change(() => {
        this.state = error instanceof DOMException && error.name === "AbortError" ? "interrupted" : "failed";
        this.error = error instanceof Error ? error.message : String(error);
      });
      return null;
    }
  }

  stop() {
    if (this.state !== "writing") return;
    this.#abort.abort();
    this.#change(() => (this.state = "stopped"));
  }

  /**
   * Calls a listener after each change, in place of the one before.
   * @param {() => void} listener
   */
  listen(listener) {
    this.#listener = listener;
  }

  /** @param {() => void} change */
  #change(change) {
    change();
    this.#listener();
  }
}
