/** A decoder writes: one token after the other, each with its candidates, while the map of the shown head grows. */

import { candidateTable, tokenName } from "./candidates.js";
import { GrowingMap, growingRows } from "./growing.js";
import { WritingRun } from "./run.js";
import { writingForm } from "./form.js";
import { element, visible } from "../core/dom.js";
import { gridStep } from "../heads/order.js";
import { openMap } from "../map/open.js";

/** @typedef {import("../live/engine.js").Engine} Engine */
/** @typedef {import("../live/engine.js").Live} Live */
/** @typedef {import("../live/engine.js").WrittenToken} WrittenToken */

/**
 * What outlives an answer, with which the views are mounted again.
 * @typedef {object} Memory
 * @property {import("./form.js").WritingSettings} settings
 * @property {WritingRun | null} run
 * @property {{tokens: string[], weights: Float32Array | null}} prompt of the run: its tokens, and the map of the shown head
 * @property {string} head the shown head in words
 * @property {number | null} chosen the written token whose candidates are shown
 */

/** @type {WeakMap<Engine, Memory>} */
const memories = new WeakMap();

/** @type {import("../page.js").View} */
export const writing = {
  name: "writing",
  title: "Writing",
  help:
    "The model continues the text. Every token is chosen among candidates: click one to see which. Each token that is read adds a row to the map " +
    "of the head that is chosen above. When the model has written, all views show the whole text.",
  fits: () => true,
  mount: mountWriting,
  single: true,
};

/**
 * @param {HTMLElement} root
 * @param {import("../page.js").Page} page
 */
function mountWriting(root, page) {
  const live = /** @type {Live} */ (page.live);
  const text = live.question.texts[0] ?? "";
  const memory = memoryOf(live);

  const form = writingForm(memory.settings, { start, stop: () => memory.run?.stop() });
  const status = element("p", { class: "progress", role: "status" });
  const written = writtenText(choose);
  const candidates = element("div", {});
  const map = new GrowingMap();
  const caption = element("figcaption", {});
  const figure = element("figure", {}, caption, map.canvas);
  root.append(form.root, status, written.root, element("div", { class: "body" }, candidates, figure));
  let frame = 0;
  new ResizeObserver(paintSoon).observe(figure);
  if (memory.run?.belongsTo(text)) memory.run.listen(draw);
  else leaveOldText();

  /** Another text has come. If it was typed before Generate was pressed, it is the one that was meant. */
  function leaveOldText() {
    const old = memory.run;
    const isMeant = old?.state === "writing";
    memory.run = null;
    old?.stop();
    if (isMeant) void start();
  }

  async function start() {
    const { attention, head } = page.store.state;
    const { layer } = page.data.attention(attention);
    memory.head = `layer ${layer}, head ${page.data.headFacts(attention, head).number}`;
    memory.prompt = { tokens: page.data.tokens(attention).keys, weights: page.data.map(attention, head) };
    memory.chosen = null;
    const run = new WritingRun({ text, ...memory.settings, show: { attention, head } });
    memory.run = run;
    run.listen(draw);
    draw();
    const answer = await run.start(live.engine);
    if (memory.run !== run || live.question.texts[0] !== text) return; // the reader went on to another text
    if (answer) live.setAnswer(run.text, answer);
    else if (run.state === "stopped" && run.tokens.length > 0) live.setText(run.text);
  }

  /** @param {number} index of a written token */
  function choose(index) {
    memory.chosen = index;
    drawCandidates();
    written.mark(index);
  }

  function draw() {
    const { run } = memory;
    form.show(run?.state === "writing");
    status.textContent = run ? statusText(run) : "";
    status.classList.toggle("broken", run?.state === "failed");
    written.show(run?.question.text ?? text, run?.tokens ?? []);
    written.mark(memory.chosen);
    drawCandidates();
    caption.replaceChildren(...(run ? mapCaption(page, memory, run) : []));
    figure.hidden = !run || run.tokens.length === 0;
    paintSoon();
  }

  function drawCandidates() {
    const { run, chosen } = memory;
    const found = run && chosen !== null ? run.tokens[chosen] : undefined;
    if (!run || !found || chosen === null) return candidates.replaceChildren();
    const before = run.textBefore(chosen);
    const table = candidateTable({
      caption: `New token ${chosen + 1}: the likeliest at its place, and the one that was written`,
      candidates: found.candidates.map((each) => ({ before: each, after: null })),
      edited: false,
      written: found.token.id,
      action: { name: "end the text here with it", choose: (added) => live.setText(before + added) },
    });
    candidates.replaceChildren(table);
  }

  /** A frame draws all tokens that came since the last one. */
  function paintSoon() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      if (memory.run && !figure.hidden) map.paint(growingRows(memory.prompt, memory.run.tokens), figure.clientWidth, `Map of ${memory.head}`);
    });
  }

  return (/** @type {unknown} */ _, /** @type {unknown} */ before) => {
    if (before === null) draw(); // mounted, opened again, or in other colours
  };
}

/**
 * @param {Live} live
 * @returns {Memory}
 */
function memoryOf({ engine }) {
  const known = memories.get(engine) ?? { settings: { max_new_tokens: 20, temperature: 0, seed: 0 }, run: null, prompt: { tokens: [], weights: null }, head: "", chosen: null };
  memories.set(engine, known);
  return known;
}

/** @param {WritingRun} run */
function statusText({ state, place, tokens, error }) {
  const count = `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}`;
  if (state === "failed") return visible(error);
  if (state === "writing") return place > 0 ? `Waiting: ${place === 1 ? "one question comes" : `${place} questions come`} first.` : "Writing.";
  return state === "done" ? `Written: ${count}.` : `Stopped after ${count}.`;
}

/**
 * @param {import("../page.js").Page} page
 * @param {Memory} memory
 * @param {WritingRun} run
 */
function mapCaption(page, { head }, { question: { show }, tokens, state }) {
  const open = element("button", { type: "button", onclick: () => openMap(page, show.attention, show.head) }, "Open its map");
  const rows = tokens.at(-1)?.weights.length ?? 0;
  return [`Map of ${head}: ${rows} tokens were read. Each row is a query. `, state !== "writing" && open].filter((part) => part !== false);
}

/**
 * The prompt, and each written token as a button; arrows lead from one to the next.
 * @param {(index: number) => void} choose
 */
function writtenText(choose) {
  const root = element("p", { class: "written" });
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  let prompt = "";

  root.addEventListener("keydown", (event) => {
    const from = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const to = from < 0 ? null : gridStep(event.key, from, buttons.length, 1);
    if (to === null) return;
    event.preventDefault();
    buttons[to]?.focus();
    choose(to);
  });

  return {
    root,
    /**
     * @param {string} text
     * @param {WrittenToken[]} tokens
     */
    show(text, tokens) {
      if (text !== prompt || tokens.length < buttons.length) root.replaceChildren(element("bdi", { class: "prompt" }, visible(text)));
      if (text !== prompt || tokens.length < buttons.length) buttons = [];
      prompt = text;
      tokens.slice(buttons.length).forEach((written) => {
        const index = buttons.length;
        const button = element("button", { type: "button", tabindex: index === 0 ? 0 : -1, "aria-pressed": "false", title: "Its candidates", onclick: () => choose(index) }, ...tokenName(written.token.token));
        buttons.push(button);
        root.append(button);
      });
    },
    /** @param {number | null} index */
    mark(index) {
      buttons.forEach((button, i) => {
        button.setAttribute("aria-pressed", String(i === index));
        button.tabIndex = i === (index ?? 0) ? 0 : -1;
      });
    },
  };
}
