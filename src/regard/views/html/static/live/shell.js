/** A live page: the reader types, and a model answers. The last answer stands until the next one is there. */

import { Asking } from "./asking.js";
import { Changes } from "./changes.js";
import { liveEffect } from "./effects.js";
import { textFields } from "./fields.js";
import { livePages } from "./pages.js";
import { statusLine } from "./status.js";
import { liveWhatif } from "./whatif.js";
import { element, visible } from "../core/dom.js";
import { reportHeight } from "../core/frame.js";
import { isEqual } from "../core/store.js";
import { VIEWS } from "../page.js";

/** @typedef {import("./engine.js").Answer} Answer */
/** @typedef {import("./engine.js").Engine} Engine */
/** @typedef {import("./engine.js").Question} Question */
/** @typedef {import("../page.js").View} View */

/**
 * @typedef {object} LivePageOptions
 * @property {Engine} engine
 * @property {Answer} first the answer to the texts that the page opens with, without edits
 * @property {readonly View[]} [views] by default those of every page; Effect and What if are replaced by those that ask the model
 * @property {Promise<void>} [ready] when the model can be asked, where it is still starting; the first texts are then asked
 *   again. Rejected: the page shows the first answer only, and says why
 */

/** Views that show both texts, or change the first only, and stand alone where two are compared. */
const SINGLE = ["context", "patches"];

/**
 * Fills the body of a page.
 * @param {HTMLElement} body
 * @param {LivePageOptions} options
 */
export function startLivePage(body, { engine, first, views = VIEWS, ready }) {
  const { model } = engine;
  const texts = first.texts.map((_, i) => model.texts[i] ?? "");
  const changes = new Changes();
  /** @type {import("./engine.js").Live} */
  const live = { engine, question: { texts, edits: [] }, answer: first, changes, setText: (text) => fields.setText(text), setAnswer };
  const status = statusLine();
  const fields = textFields(model.texts, model.has_vector, () => ask());
  const similarity = element("p", { class: "similarity" });
  const pages = livePages(live, views.map(liveView));
  let isReady = false;
  /** Whether what is shown was computed before the model was there. */
  let isOld = ready !== undefined;

  /** @type {Asking<Question, Answer>} */
  const asking = new Asking({
    ask: (question, signal) => engine.ask(question, { signal, onQueue: (place) => status.queue(place) }),
    onAnswer: take,
    onError: (_, error) => {
      status.error(errorText(error), error instanceof Error && error.name === "ServerGone" ? ask : null);
      changes.answer(changes.movement);
    },
    onBusy: (busy) => status.busy(busy),
  });

  function ask() {
    const typed = fields.texts;
    if (!isReady) return;
    if (typed.some((text) => text.trim() === "")) {
      asking.cancel();
      status.error("A text is wanted.");
      return;
    }
    // Edits of rows belong to the text that is shown; they stay there until another one has come.
    asking.ask({ texts: typed, edits: [...(typed[0] === live.question.texts[0] ? changes.list : changes.forAnyText)] });
  }

  /**
   * Shows an answer.
   * @param {Question} question
   * @param {Answer} answer
   */
  function take(question, answer) {
    const isSame = isEqual(question.texts, live.question.texts);
    const tokens = (/** @type {Answer} */ { texts: all }) => all[0]?.facts.texts;
    const sameTokens = isEqual(tokens(answer), tokens(live.answer));
    live.question = { texts: question.texts, edits: [] };
    live.answer = answer;
    if (!sameTokens) changes.keepForAnyText();
    if (!isSame || isOld) pages.show(answer);
    isOld = false;
    status.answered(answerText(answer));
    showSimilarity(answer);
    if (changes.list.length === 0) clearMovement();
    if (isEqual(question.edits, changes.list) || changes.list.length === 0) changes.answer(answer.movement);
    else if (isEqual(question.texts, fields.texts)) ask();
  }

  /**
   * Shows an answer that is here already. Where two texts are compared, it is asked how they compare now.
   * @param {string} text
   * @param {Answer} answer
   */
  function setAnswer(text, answer) {
    if (fields.texts.length > 1) {
      fields.setText(text);
      return;
    }
    asking.cancel();
    fields.showText(text);
    take({ texts: [text], edits: [] }, answer);
  }

  /** @param {Answer} answer */
  function showSimilarity({ similarity: value, movement }) {
    similarity.hidden = value === null;
    if (value === null) return;
    const after = movement?.similarity ?? null;
    similarity.dataset.value = String(value);
    similarity.replaceChildren("Similarity ", element("strong", {}, value.toFixed(4)), ...(after === null ? [] : [" → ", element("strong", {}, after.toFixed(4)), " with the changes of What if"]), element("span", { class: "quiet" }, " · cosine of the two texts’ vectors, −1 to 1"));
  }

  changes.subscribe(() => changes.pending && ask());
  changes.subscribe(() => changes.list.length === 0 && clearMovement());

  function clearMovement() {
    if (!live.answer.movement) return;
    live.answer = { ...live.answer, movement: null };
    showSimilarity(live.answer);
  }

  body.replaceChildren(
    element("header", { class: "live-header" }, element("h1", {}, element("bdi", { class: "model" }, visible(model.name))), element("p", {}, visible(model.description))),
    element("form", { class: "ask", onsubmit: (/** @type {Event} */ event) => event.preventDefault() }, fields.root, element("div", { class: "below" }, status.root, fields.compare), similarity),
    pages.root,
    pageFooter(model, first),
  );
  pages.show(first);
  showSimilarity(first);
  document.documentElement.dataset.ready = "yes";
  reportHeight(body);
  start();

  function start() {
    if (!ready) {
      isReady = true;
      status.answered(answerText(first));
      return;
    }
    status.wait("The model is starting …");
    ready.then(
      () => {
        isReady = true;
        document.documentElement.dataset.model = "ready";
        ask();
      },
      (error) => {
        document.documentElement.dataset.model = "missing";
        fields.disable();
        status.error(`${errorText(error)} The page shows the text that it was made with.`);
      },
    );
  }
}

/**
 * A view as a live page has it.
 * @param {View} view
 * @returns {View}
 */
function liveView(view) {
  if (view.name === "effect") return liveEffect;
  if (view.name === "whatif") return liveWhatif;
  return SINGLE.includes(view.name) ? { ...view, single: true } : view;
}

/** @param {Answer} answer */
function answerText({ texts, seconds }) {
  const counts = texts.map(({ facts }) => facts.texts[0]?.tokens.length ?? 0);
  return `${counts.join(" and ")} tokens${seconds > 0 ? ` · ${seconds < 0.1 ? seconds.toFixed(3) : seconds.toFixed(2)} s` : ""}`;
}

/** @param {unknown} error */
function errorText(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * @param {import("./engine.js").ModelFacts} model
 * @param {Answer} first
 */
function pageFooter({ notes }, { texts }) {
  const { omitted = [], generator = "regard", notes: own = [] } = texts[0]?.facts ?? {};
  const lines = [...notes, ...own, ...omitted];
  return element(
    "footer",
    {},
    lines.length > 0 && element("h2", {}, "About this model and page"),
    lines.length > 0 && element("ul", {}, ...lines.map((line) => element("li", {}, visible(line)))),
    element("p", {}, `Made by ${generator}. Layers, heads and positions count from 0.`),
  );
}
