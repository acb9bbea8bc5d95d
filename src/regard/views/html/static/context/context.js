/** What context does to a word: its vector in several sentences, after each layer. */

import { cosineChart } from "./chart.js";
import { firstSentence, stateName } from "./plotting.js";
import { wordPlane } from "./plane.js";
import { cosineTable } from "./table.js";
import { sentenceList, wordList } from "./words.js";
import { field } from "../core/controls.js";
import { element, token } from "../core/dom.js";

/** @typedef {import("../core/data.js").Context} Context */

/** @type {import("../page.js").View} */
export const context = {
  name: "context",
  title: "Context",
  help:
    "A word starts with nearly the same vector in every sentence, and each layer mixes more of its sentence into it. Pick a word " +
    "to see how far its vectors move apart. The layer and head chosen above play no part here.",
  fits: (data) => data.facts.context !== null,
  mount: (root, { data, store }) => {
    const facts = /** @type {Context} */ (data.facts.context);
    const pick = (/** @type {number} */ word) => store.set({ word });
    const sentences = sentenceList(facts, pick);
    const words = wordList(facts, pick);
    const chart = cosineChart(choose);
    const plane = wordPlane(facts, pick);
    const table = cosineTable(choose);
    const title = element("h2", { class: "chosen", "aria-live": "polite" });
    const slider = element("input", { type: "range", min: 0, max: facts.num_layers, step: 1, oninput: () => choose(Number(slider.value)) });
    const where = element("output", { class: "where" });
    let layer = facts.num_layers;

    root.append(
      sentences.root,
      element(
        "div",
        { class: "parts" },
        words.root,
        element(
          "div",
          { class: "drawn" },
          title,
          element("div", { class: "states" }, field("Look at its vectors", slider), where),
          element("div", { class: "drawings" }, element("div", {}, chart.root, table.root), plane.root),
        ),
      ),
    );
    new ResizeObserver(() => {
      chart.resize();
      plane.resize();
    }).observe(root);

    /** @param {number} state at the input, or after a layer */
    function choose(state) {
      layer = state;
      slider.value = String(state);
      slider.setAttribute("aria-valuetext", stateName(state));
      where.textContent = stateName(state);
      chart.state(state);
      plane.state(state);
      table.state(state);
    }

    return (state, before) => {
      if (before && before.word === state.word) return;
      const word = facts.words[state.word];
      if (!word) return;
      sentences.show(state.word);
      words.show(state.word);
      title.replaceChildren("“", token(word.word), `” compared with itself in sentence ${firstSentence(word)}`);
      chart.show(word);
      plane.show(state.word);
      table.show(word);
      choose(layer);
    };
  },
};
