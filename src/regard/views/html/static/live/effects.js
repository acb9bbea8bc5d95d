/** The view Effect where the model is there: what is removed is chosen here, and the effects grow while they are computed. */

import { field } from "../core/controls.js";
import { Data } from "../core/data.js";
import { element, visible } from "../core/dom.js";
import { effect } from "../effect/effect.js";

/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("./engine.js").EffectQuestion} EffectQuestion */
/** @typedef {import("../core/store.js").State} State */
/** @typedef {import("../page.js").Page} Page */

/** Milliseconds between two drawings of effects that grow. */
const DRAWING = 400;

/** The metrics in words. @type {Record<string, string>} */
const METRICS = {
  cosine: "how far the vector moves: 1 − cosine",
  similarity: "similarity with the second text",
  log_prob: "log-probability of a next token",
  logit_difference: "difference of two tokens’ logits",
  kl: "KL divergence of the next token",
};

/** @type {Record<string, string>} */
const ABLATIONS = { zero: "zeros in its place", mean: "its mean in its place", resample: "its output in another text" };

/** @type {import("../page.js").View} */
export const liveEffect = {
  ...effect,
  help: "What was looked at beside what mattered: each part is removed in turn, and the model computes its metric anew. An effect is the metric of the model as it is, minus the metric without this part.",
  fits: (data, live) => data.facts.effects.length > 0 || (live?.engine.model.effects.length ?? 0) > 0,
  single: true,
  mount: mountEffect,
};

/**
 * @param {HTMLElement} root
 * @param {Page} page
 */
function mountEffect(root, page) {
  const live = page.live;
  const result = element("div", { class: "effect-result" });
  if (!live || live.engine.model.effects.length === 0) {
    root.append(result);
    return effect.mount(result, page);
  }
  const controls = effectControls(page, live, compute, () => running?.abort());
  /** @type {AbortController | null} */
  let running = null;
  /** @type {ReturnType<typeof effect.mount> | null} */
  let update = page.data.facts.effects.length > 0 ? effect.mount(result, page) : null;
  let drawn = 0;
  root.append(controls.root, result);
  page.signal.addEventListener("abort", () => running?.abort());

  /** @param {EffectFacts} found */
  function draw(found) {
    drawn = performance.now();
    const facts = { ...found, metric: found.metric.startsWith("cosine(") ? "how far the text’s vector moves, 1 − cosine" : found.metric };
    const part = element("div", {});
    update = effect.mount(part, { ...page, data: new Data({ ...page.data.facts, effects: [facts] }, page.data.numbers) });
    result.replaceChildren(part);
    update(page.store.state, null);
  }

  /** @param {EffectQuestion} question */
  async function compute(question) {
    running?.abort();
    const controller = new AbortController();
    running = controller;
    controls.started();
    try {
      const facts = await /** @type {NonNullable<typeof live>} */ (live).engine.effects(question, {
        signal: controller.signal,
        onQueue: (place) => controls.queue(place),
        onProgress: (done, total, sofar) => {
          if (running !== controller) return;
          controls.progress(done, total);
          // A table that has the focus is not taken away under the reader.
          if (sofar && performance.now() - drawn > DRAWING && !result.contains(document.activeElement)) draw({ ...sofar, summary: "The summary comes when all are computed." });
        },
      });
      if (running !== controller) return;
      draw(facts);
      controls.ended("");
    } catch (error) {
      if (running === controller) controls.ended(controller.signal.aborted ? "Cancelled." : error instanceof Error ? error.message : String(error), !controller.signal.aborted);
    }
  }

  return (/** @type {State} */ state, /** @type {State | null} */ before) => update?.(state, before);
}

/**
 * The choices, and the line that says how far the computation is.
 * @param {Page} page
 * @param {import("./engine.js").Live} live
 * @param {(question: EffectQuestion) => void} compute
 * @param {() => void} cancel
 */
function effectControls({ choices }, live, compute, cancel) {
  const { model } = live.engine;
  const { texts } = live.question;
  const next = live.answer.texts[0]?.next ?? [];
  const metrics = model.metrics.filter((name) => name !== "similarity" || texts.length > 1);
  const over = select("effectOver", model.effects.map((name) => [name, name]));
  const metric = select("effectMetric", metrics.map((name) => [name, METRICS[name] ?? name]));
  const ablation = select("effectAblation", model.ablations.map((name) => [name, ABLATIONS[name] ?? name]));
  const tokens = [0, 1].map((i) => input(`effectToken${i}`, String(next[i]?.token ?? ""), 8));
  const source = input("effectSource", "", 24);
  const [token, other] = tokens.map((each, i) => field(i === 0 ? "Next token" : "minus the token", each));
  const sourceField = field("Another text", source);
  const start = element("button", { class: "compute" }, "Compute");
  const stop = element("button", { type: "button", class: "cancel", hidden: true, onclick: cancel }, "Cancel");
  const bar = element("progress", { max: 1, value: 0, hidden: true, "aria-label": "Effects computed" });
  const message = element("span", { class: "message", role: "status" });
  const root = element(
    "form",
    { class: "effect-controls", onsubmit },
    field("Remove each of", over),
    field("Metric", metric),
    token ?? null,
    other ?? null,
    field("Put", ablation),
    sourceField,
    start,
    stop,
    bar,
    message,
  );

  /**
   * A list that keeps its choice when the page is mounted for another text.
   * @param {string} name
   * @param {string[][]} options
   */
  function select(name, options) {
    const list = element("select", { class: name, onchange: () => keep(name, list.value) }, ...options.map(([value, text]) => element("option", { value }, text)));
    if (options.some(([value]) => value === choices[name])) list.value = choices[name] ?? "";
    return list;
  }

  /**
   * @param {string} name
   * @param {string} value
   * @param {number} size
   */
  function input(name, value, size) {
    const box = element("input", { type: "text", class: name, size, autocomplete: "off", spellcheck: "false", oninput: () => keep(name, box.value) });
    box.value = choices[name] ?? value;
    return box;
  }

  /**
   * @param {string} name
   * @param {string} value
   */
  function keep(name, value) {
    choices[name] = value;
    show();
  }

  /** Shows the fields that the choices need. */
  function show() {
    if (token) token.hidden = !["log_prob", "logit_difference"].includes(metric.value);
    if (other) other.hidden = metric.value !== "logit_difference";
    sourceField.hidden = ablation.value !== "resample";
  }

  /** @param {Event} event */
  function onsubmit(event) {
    event.preventDefault();
    const count = metric.value === "log_prob" ? 1 : metric.value === "logit_difference" ? 2 : 0;
    if (ablation.value === "resample" && source.value.trim() === "") {
      say("Another text is wanted, whose outputs take the place of this one’s.", true);
      source.focus();
      return;
    }
    compute({ texts, over: /** @type {EffectQuestion["over"]} */ (over.value), metric: metric.value, tokens: tokens.slice(0, count).map(({ value }) => value), ablation: ablation.value, source: ablation.value === "resample" ? source.value : null });
  }

  /**
   * @param {string} text
   * @param {boolean} [isError]
   */
  function say(text, isError = false) {
    message.textContent = text && visible(text);
    message.classList.toggle("doubt", isError);
  }
  show();
  return {
    root,
    started() {
      stop.hidden = bar.hidden = false;
      bar.removeAttribute("value");
      say("");
    },
    /** @param {number} place */
    queue: (place) => say(place > 0 ? `${place} ${place === 1 ? "question comes" : "questions come"} first` : ""),
    /**
     * @param {number} done
     * @param {number} total
     */
    progress(done, total) {
      bar.max = total;
      bar.value = done;
      say(`${done} of ${total}`);
    },
    /**
     * @param {string} text
     * @param {boolean} [isError]
     */
    ended(text, isError) {
      if (document.activeElement === stop) start.focus();
      stop.hidden = bar.hidden = true;
      say(text, isError);
    },
  };
}
