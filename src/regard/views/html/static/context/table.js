/** A word's cosines in numbers. */

import { firstSentence, sentenceSwatch, stateName } from "./plotting.js";
import { element } from "../core/dom.js";

/** @typedef {import("../core/data.js").ContextWord} ContextWord */

/**
 * @param {(state: number) => void} choose
 */
export function cosineTable(choose) {
  const table = element("table", { class: "cosines" });
  const root = element("details", { open: true }, element("summary", {}, "The cosines in numbers"), element("div", { class: "wide" }, table));
  /** @type {HTMLTableRowElement[]} */
  let rows = [];
  return {
    root,
    /** @param {ContextWord} word */
    show(word) {
      const states = word.cosines[0]?.cosine.length ?? 0;
      rows = Array.from({ length: states }, (_, state) =>
        element(
          "tr",
          { "data-state": state, onclick: () => choose(state) },
          element("th", { scope: "row" }, stateName(state)),
          ...word.cosines.map(({ sentence, cosine }) => {
            const value = Number(cosine[state]);
            return element("td", { "data-sentence": sentence, "data-cosine": value }, value.toFixed(4).replace("-", "−"));
          }),
        ),
      );
      const heads = word.cosines.map(({ sentence }) => element("th", { scope: "col" }, sentenceSwatch(sentence), `sentence ${sentence}`));
      table.replaceChildren(
        element("caption", {}, `Cosine with its vector in sentence ${firstSentence(word)}`),
        element("thead", {}, element("tr", {}, element("td", {}), ...heads)),
        element("tbody", {}, ...rows),
      );
    },
    /** @param {number} state */
    state(state) {
      rows.forEach((row, i) => row.classList.toggle("chosen", i === state));
    },
  };
}
