/** The model of a page: tokenizer, encoder and facts, from a question to its answer. */

import { contextOf, lastSharedWord } from "./context.js";
import { effects } from "./effects.js";
import { Encoder } from "./encoder.js";
import { InputError } from "./errors.js";
import { answerFacts } from "./facts.js";
import { cosine, movement } from "./movement.js";
import { WordPieceTokenizer } from "./tokenizer.js";
import { decodeWeights } from "./weights.js";
import { Words } from "./words.js";

/** @typedef {import("../live/engine.js").Answer} Answer */
/** @typedef {import("../live/engine.js").EffectQuestion} EffectQuestion */
/** @typedef {import("../live/engine.js").ModelEdit} ModelEdit */
/** @typedef {import("../live/engine.js").Movement} Movement */
/** @typedef {import("../live/engine.js").Question} Question */
/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("./encoder.js").Run} Run */
/** @typedef {() => Promise<void>} Breathe awaited now and then: lets others work, and throws where the question was cancelled */

/**
 * What regard/views/html/model_page.py writes of a model, without its weights.
 * @typedef {object} ModelSettings
 * @property {string} name
 * @property {string} generator
 * @property {import("./weights.js").EncoderConfig} config
 * @property {number} weights_length the bytes of the compressed weights
 * @property {import("./tokenizer.js").WordPieceSettings} tokenizer
 * @property {string} kernels kernels.wasm in base64
 * @property {string[]} paths of each layer's attention
 */

/**
 * A text as the model read it.
 * @typedef {object} ReadText
 * @property {Words} words
 * @property {Run} run
 */

/** The texts whose runs are kept: two that are compared, and those before. */
const KEPT_TEXTS = 4;

export class PageModel {
  /** @type {Map<string, ReadText>} */
  #read = new Map();

  /**
   * Use `create`.
   * @param {ModelSettings} settings
   * @param {Encoder} encoder
   */
  constructor(settings, encoder) {
    this.settings = settings;
    this.encoder = encoder;
    this.tokenizer = new WordPieceTokenizer(settings.tokenizer);
    const { num_heads, attention_scale } = settings.config;
    this.shape = { numHeads: num_heads, dHead: encoder.dHead, scale: attention_scale };
  }

  /**
   * Throws an Error for weights that are damaged, and where WebAssembly is missing.
   * @param {ModelSettings} settings
   * @param {string} weights seven bits a character
   */
  static async create(settings, weights) {
    const bytes = await decodeWeights(weights, settings.weights_length);
    const kernels = Uint8Array.from(atob(settings.kernels), (each) => each.charCodeAt(0));
    return new PageModel(settings, await Encoder.create(settings.config, bytes, kernels));
  }

  /**
   * Throws an InputError for a text that cannot be read.
   * @param {Question} question
   * @param {Breathe} breathe
   * @returns {Promise<Answer>}
   */
  async ask({ texts, edits }, breathe) {
    const begin = performance.now();
    /** @type {ReadText[]} */
    const read = [];
    for (const text of texts) read.push(await this.#readText(text, breathe));
    const [first, second] = read;
    if (!first) throw new InputError("no text; write a sentence");
    const context = second ? contextOf(read.map(({ words, run }) => ({ words, hiddenStates: run.hiddenStates })), lastSharedWord(read.map(({ words }) => words))) : null;
    await breathe();
    const answers = [];
    for (const each of read) {
      answers.push({ ...this.#facts(each, each === first ? (context?.context ?? null) : null), next: null });
      await breathe();
    }
    const similarity = second ? cosine(first.run.vector, second.run.vector) : null;
    const moved = edits.length ? await this.#move(first.run, second?.run ?? null, edits, breathe) : null;
    return { texts: answers, similarity, movement: moved, seconds: (performance.now() - begin) / 1000 };
  }

  /**
   * @param {EffectQuestion} question
   * @param {Breathe} breathe
   * @param {(done: number, total: number, sofar: EffectFacts) => void} tell
   * @returns {Promise<EffectFacts>}
   */
  async effects({ texts, over, metric, ablation, source }, breathe, tell) {
    const [text = "", other] = texts;
    const { words, run } = await this.#readText(text, breathe);
    const second = other === undefined ? null : await this.#readText(other, breathe);
    const from = source === null ? null : await this.#readText(source, breathe);
    const options = { over, metric, ablation, tokens: labels(words), secondVector: second?.run.vector ?? null, source: from?.run ?? null, onLayer: breathe, ...this.shape };
    /** @type {EffectFacts | null} */
    let last = null;
    for await (const { done, total, sofar } of effects(this.encoder, run.ids, run, options)) {
      last = sofar;
      tell(done, total, sofar);
    }
    if (!last) throw new InputError(`the text has no ${over} that could be removed`);
    return last;
  }

  /**
   * @param {string} text
   * @param {Breathe} breathe
   * @returns {Promise<ReadText>}
   */
  async #readText(text, breathe) {
    const known = this.#read.get(text);
    if (known) {
      this.#read.delete(text); // the newest is the last
      this.#read.set(text, known);
      return known;
    }
    const words = Words.of(text, this.tokenizer);
    const run = await this.encoder.forward(words.encoding.ids, { onLayer: breathe });
    this.#read.set(text, { words, run });
    for (const old of [...this.#read.keys()].slice(0, -KEPT_TEXTS)) this.#read.delete(old);
    return { words, run };
  }

  /**
   * @param {ReadText} read
   * @param {import("../core/data.js").Context | null} context
   */
  #facts({ words, run }, context) {
    const { name, generator, paths } = this.settings;
    return answerFacts(run, { tokens: labels(words), title: words.text, model: name, generator, paths, context, ...this.shape });
  }

  /**
   * What edits of the model make of the first text.
   * @param {Run} run
   * @param {Run | null} second
   * @param {ModelEdit[]} edits
   * @param {Breathe} breathe
   * @returns {Promise<Movement>}
   */
  async #move(run, second, edits, breathe) {
    const after = await this.encoder.forward(run.ids, { edits, after: run, onLayer: breathe });
    return movement(run, after, { ...this.shape, edits, secondVector: second?.vector ?? null });
  }
}

/**
 * The tokens as the page shows them: a letter that the vocabulary does not have is itself.
 * @param {Words} words
 */
function labels(words) {
  return words.displayTokens();
}
