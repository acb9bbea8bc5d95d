/** The line below the text: how long the answer took, what is computed, and what went wrong. */

import { element, visible } from "../core/dom.js";

/** Milliseconds after which one is told that something is computed: what is faster needs no word. */
const PATIENCE = 400;

/** Milliseconds of rest after which a screen reader says the line: not at each key. */
const REST = 900;

/** A status line, which is always there, so that nothing below it moves. */
export function statusLine() {
  const dot = element("span", { class: "dot", "aria-hidden": "true" });
  const words = element("span", { class: "words" });
  const spoken = element("span", { class: "spoken", role: "status", id: "live-status" });
  const root = element("p", { class: "live-status" }, dot, words, spoken);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let patience;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;
  let last = "";

  /**
   * @param {string} text
   * @param {"" | "error" | "busy"} [kind]
   */
  function say(text, kind = "") {
    words.textContent = visible(text);
    words.className = `words ${kind}`.trim();
    clearTimeout(rest);
    rest = setTimeout(() => {
      if (spoken.textContent !== words.textContent) spoken.textContent = words.textContent;
    }, REST);
  }

  return {
    root,
    /** @param {boolean} busy */
    busy(busy) {
      clearTimeout(patience);
      root.classList.toggle("computing", busy);
      if (busy) patience = setTimeout(() => say(last ? `${last} · computing …` : "Computing …", "busy"), PATIENCE);
    },
    /** @param {number} place how many questions come first */
    queue(place) {
      clearTimeout(patience);
      if (place > 0) say(`${place} ${place === 1 ? "question comes" : "questions come"} first …`, "busy");
      else patience = setTimeout(() => say("Computing …", "busy"), PATIENCE);
    },
    /** @param {string} text */
    answered(text) {
      last = text;
      clearTimeout(patience);
      say(text);
    },
    /** @param {string} text */
    wait: (text) => say(text, "busy"),
    /**
     * @param {string} text
     * @param {(() => void) | null} [again] tries what went wrong once more
     */
    error(text, again = null) {
      clearTimeout(patience);
      say(text, "error");
      if (again) words.append(" ", element("button", { type: "button", class: "quiet-button again", onclick: again }, "Try again"));
    },
  };
}
