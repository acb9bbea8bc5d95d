/** The words that sentences share: in a list, and in the sentences themselves. */

import { wordsByChange, sentenceSwatch, wordChange } from "./plotting.js";
import { field } from "../core/controls.js";
import { element, token, visible } from "../core/dom.js";

/** @typedef {import("../core/data.js").Context} Context */

/** Longer lists can be searched. */
const MIN_SEARCHABLE = 12;

/**
 * One button of many takes the tabulator; arrows lead to the others.
 * @param {HTMLElement} box
 * @param {{next: string[], last: string[]}} keys
 */
function rovingFocus(box, { next, last }) {
  box.addEventListener("keydown", (event) => {
    const buttons = [...box.querySelectorAll("button")].filter((button) => !button.hidden && button.offsetParent !== null);
    const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const to = next.includes(event.key) ? at + 1 : last.includes(event.key) ? at - 1 : event.key === "Home" ? 0 : event.key === "End" ? buttons.length - 1 : -1;
    const button = buttons[to];
    if (at < 0 || !button) return;
    event.preventDefault();
    for (const each of buttons) each.tabIndex = -1;
    button.tabIndex = 0;
    button.focus();
  });
}

/**
 * Marks the chosen buttons of a box, and sees that the tabulator reaches one.
 * @param {HTMLButtonElement[]} buttons
 * @param {number} word
 */
function markChosen(buttons, word) {
  const chosen = buttons.filter((button) => Number(button.dataset.word) === word);
  for (const button of buttons) {
    button.setAttribute("aria-pressed", String(chosen.includes(button)));
    button.tabIndex = -1;
  }
  const first = chosen.find((button) => !button.hidden) ?? buttons.find((button) => !button.hidden);
  if (first) first.tabIndex = 0;
}

/**
 * Scrolls a box, and nothing else: the page stays where the reader is.
 * @param {HTMLElement} box whose children are placed by it
 * @param {HTMLElement | undefined} child
 */
function bringIntoView(box, child) {
  if (!child || child.hidden) return;
  const [top, bottom] = [child.offsetTop, child.offsetTop + child.offsetHeight];
  if (top < box.scrollTop) box.scrollTop = top;
  else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight;
}

/**
 * The sentences, in which shared words can be picked.
 * @param {Context} context
 * @param {(word: number) => void} pick
 */
export function sentenceList({ sentences }, pick) {
  const rows = sentences.map((parts, i) => {
    const buttons = [];
    const row = element("p", { dir: "auto" });
    for (const { text, word } of parts) {
      if (word === null) row.append(inSentence(text));
      else {
        const button = element("button", { type: "button", class: "shared", "data-word": word, "aria-label": `${visible(text)}, in sentence ${i}`, onclick: () => pick(word) }, inSentence(text));
        buttons.push(button);
        row.append(button);
      }
    }
    rovingFocus(row, { next: ["ArrowRight", "ArrowDown"], last: ["ArrowLeft", "ArrowUp"] });
    return { row, buttons };
  });
  const list = rows.map(({ row }, i) => element("li", {}, element("span", { class: "which" }, sentenceSwatch(i), `sentence ${i}`), row));
  return {
    root: element("ol", { class: "sentences", "aria-label": "The sentences; words that several of them share can be picked" }, ...list),
    /** @param {number} word */
    show: (word) => {
      for (const { row, buttons } of rows) {
        markChosen(buttons, word);
        bringIntoView(row, buttons.find((button) => Number(button.dataset.word) === word));
      }
    },
  };
}

/**
 * Text between two words: its spaces are spaces, what cannot be seen otherwise is shown.
 * @param {string} text
 */
function inSentence(text) {
  return visible(`|${text}|`).slice(1, -1);
}

/**
 * The list of shared words, those that change most first.
 * @param {Context} context
 * @param {(word: number) => void} pick
 */
export function wordList({ words, num_shared: numShared }, pick) {
  const maxChange = Math.max(1e-9, ...words.map(wordChange));
  const buttons = wordsByChange(words).map((i) => {
    const { word } = words[i] ?? { word: "" };
    const change = wordChange(/** @type {import("../core/data.js").ContextWord} */ (words[i]));
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${((change / maxChange) * 100).toFixed(1)}%`;
    const label = `${visible(word)}, change ${change.toFixed(3)}`;
    return element(
      "button",
      { type: "button", "data-word": i, "aria-label": label, onclick: () => pick(i) },
      token(word),
      element("span", { class: "much" }, change.toFixed(3)),
      element("span", { class: "track" }, bar),
    );
  });
  const list = element("ul", {}, ...buttons.map((button) => element("li", {}, button)));
  rovingFocus(list, { next: ["ArrowDown", "ArrowRight"], last: ["ArrowUp", "ArrowLeft"] });
  const message = element("p", { class: "quiet", role: "status" });
  const search = element("input", { type: "search", autocomplete: "off", oninput: () => filter() });
  let chosen = 0;

  function filter() {
    const searchText = search.value.trim().toLowerCase();
    let count = 0;
    for (const button of buttons) {
      const fits = String(words[Number(button.dataset.word)]?.word).toLowerCase().includes(searchText);
      button.hidden = !fits;
      if (button.parentElement) button.parentElement.hidden = !fits;
      count += Number(fits);
    }
    message.textContent = searchText === "" ? "" : count === 0 ? `No shared word has "${searchText}" in it.` : `${count} of ${buttons.length}`;
    markChosen(buttons, chosen);
  }

  const root = element(
    "section",
    { class: "words", "aria-label": "Shared words" },
    element("h2", {}, "Shared words"),
    element("p", { class: "quiet" }, "By change: 1 − cosine of the two vectors after the last layer, the largest of all sentences."),
    words.length > MIN_SEARCHABLE && field("Search", search),
    words.length > MIN_SEARCHABLE && message,
    list,
    numShared > words.length && element("p", { class: "quiet" }, `${numShared} words are shared; here are the ${words.length} that change most.`),
  );
  return {
    root,
    /** @param {number} word */
    show: (word) => {
      chosen = word;
      markChosen(buttons, word);
      bringIntoView(list, buttons.find((button) => Number(button.dataset.word) === word));
    },
  };
}
