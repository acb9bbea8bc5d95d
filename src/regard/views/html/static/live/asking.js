/** Questions while the reader types: one is computed at a time, and the newest comes next. */

/**
 * Milliseconds that a question is still computed after a newer one came: the answers of short texts are seen while they
 * grow, and a long text is not waited for.
 */
const GRACE = 250;

/**
 * @template Question, Answer
 * @typedef {object} AskingOptions
 * @property {(question: Question, signal: AbortSignal) => Promise<Answer>} ask
 * @property {(question: Question, answer: Answer) => void} onAnswer
 * @property {(question: Question, error: unknown) => void} onError of a question that was not aborted
 * @property {(busy: boolean) => void} onBusy whether something is computed now
 * @property {number} [grace] in milliseconds
 */

/** @template Question, Answer */
export class Asking {
  /** @type {Question | null} */
  #next = null;
  /** @type {{controller: AbortController, since: number} | null} */
  #current = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {AskingOptions<Question, Answer>} options */
  constructor(options) {
    this.options = options;
  }

  /**
   * Asks this in place of what waits. What is computed now ends soon, or is aborted.
   * @param {Question} question
   */
  ask(question) {
    this.#next = question;
    if (!this.#current) {
      void this.#run();
      return;
    }
    const { controller, since } = this.#current;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => controller.abort(), Math.max(0, since + (this.options.grace ?? GRACE) - performance.now()));
  }

  /** Forgets what waits, and aborts what is computed. */
  cancel() {
    this.#next = null;
    this.#current?.controller.abort();
  }

  async #run() {
    const { ask, onAnswer, onError, onBusy } = this.options;
    onBusy(true);
    while (this.#next !== null) {
      const question = this.#next;
      const controller = new AbortController();
      this.#next = null;
      this.#current = { controller, since: performance.now() };
      try {
        const answer = await ask(question, controller.signal);
        if (!controller.signal.aborted) onAnswer(question, answer);
      } catch (error) {
        if (!controller.signal.aborted) onError(question, error);
      }
      clearTimeout(this.#timer);
    }
    this.#current = null;
    onBusy(false);
  }
}
