/** A word's cosines in numbers. */

import { firstSentence, sentenceSwatch, stateName } from "./contextfacts.js";
import { make } from "../core/dom.js";

/** @typedef {import("../core/data.js").ContextWord} ContextWord */

/**
 * @param {(state: number) => void} choose
 */
export function cosineTable(choose) {
  const table = make("table", { class: "cosines" });
  const root = make("details", { open: true }, make("summary", {}, "The cosines in numbers"), make("div", { class: "wide" }, table));
  /** @type {HTMLTableRowElement[]} */
  let rows = [];
  return {
    root,
    /** @param {ContextWord} word */
    show(word) {
      const states = word.cosines[0]?.cosine.length ?? 0;
      rows = Array.from({ length: states }, (_, state) =>
        make(
          "tr",
          { "data-state": state, onclick: () => choose(state) },
          make("th", { scope: "row" }, stateName(state)),
          ...word.cosines.map(({ sentence, cosine }) => {
            const value = Number(cosine[state]);
            return make("td", { "data-sentence": sentence, "data-cosine": value }, value.toFixed(4).replace("-", "−"));
          }),
        ),
      );
      const heads = word.cosines.map(({ sentence }) => make("th", { scope: "col" }, sentenceSwatch(sentence), `sentence ${sentence}`));
      table.replaceChildren(
        make("caption", {}, `Cosine with its vector in sentence ${firstSentence(word)}`),
        make("thead", {}, make("tr", {}, make("td", {}), ...heads)),
        make("tbody", {}, ...rows),
      );
    },
    /** @param {number} state */
    state(state) {
      rows.forEach((row, i) => row.classList.toggle("chosen", i === state));
    },
  };
}
