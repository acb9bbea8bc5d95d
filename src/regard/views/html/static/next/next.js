/** What a decoder would write next: the likeliest tokens after the text, and what edits of the model make of them. */

import { candidateTable, pairCandidates } from "./candidates.js";
import { element, token } from "../core/dom.js";

/** @typedef {import("../live/engine.js").Live} Live */

/** How much of the text's end stands above the table. */
const END_LENGTH = 60;

/** @type {import("../page.js").View} */
export const nextTokens = {
  name: "next",
  title: "Next tokens",
  help:
    "What the model would write next. It gives every token of its vocabulary a logit, and softmax makes probabilities of them. A click on a " +
    "token writes it. Edits of What if that go through the model show here as before and after.",
  fits: () => true,
  mount: (root, page) => {
    const live = /** @type {Live} */ (page.live);
    const place = element("div", {});
    root.append(place);
    const draw = () => place.replaceChildren(...content(page, live));
    live.changes.subscribe(draw, page.signal);
    return (_, before) => {
      if (before === null) draw();
    };
  },
};

/**
 * @param {import("../page.js").Page} page
 * @param {Live} live
 */
function content({ suffix }, { question, answer, changes, setText }) {
  const index = suffix === "" ? 0 : 1; // of two texts, each has a page
  const text = question.texts[index] ?? "";
  const edited = index === 0 ? (changes.movement?.next ?? null) : null; // only the first text is read with edits
  const candidates = edited ? pairCandidates(edited.before, edited.after) : pairCandidates(answer.texts[index]?.next ?? [], []);
  if (candidates.length === 0) return [element("p", { class: "quiet" }, "This model says no next token.")];
  const end = text.length > END_LENGTH ? `…${text.slice(-END_LENGTH)}` : text;
  return [
    element("p", { class: "end" }, "After ", token(end), edited && ", before the edits of the model and after them"),
    candidateTable({
      caption: `The ${candidates.length} likeliest next tokens`,
      candidates,
      edited: edited !== null,
      action: index === 0 ? { name: "write it", choose: (added) => setText(text + added) } : null,
    }),
  ];
}
