/** The likeliest next tokens as a table: logit, probability and a bar for each; with edits before and after. */

import { element, percentText, token, visible } from "../core/dom.js";
import { shareBar } from "../row/bars.js";
import { weightText } from "../row/format.js";

/** @typedef {import("../live/engine.js").NextToken} NextToken */

/**
 * A token before the edits and after them; null where it is not known.
 * @typedef {object} Candidate
 * @property {NextToken | null} before
 * @property {NextToken | null} after
 */

/**
 * What a click on a token does. Tokens that add no text, such as the one that ends it, have none.
 * @typedef {object} Action
 * @property {string} name
 * @property {(text: string) => void} choose
 */

/**
 * @param {object} table
 * @param {string} table.caption
 * @param {Candidate[]} table.candidates
 * @param {boolean} table.edited whether there is an after
 * @param {number | null} [table.written] the id of the token that was written
 * @param {Action | null} table.action
 */
export function candidateTable({ caption, candidates, edited, written = null, action }) {
  const largest = Math.max(...candidates.flatMap(({ before, after }) => [before?.probability ?? 0, after?.probability ?? 0]), 1e-9);
  const rows = candidates.map((candidate) => candidateRow(candidate, { edited, written, action, largest }));
  const sum = (/** @type {"before" | "after"} */ side) => candidates.reduce((total, each) => total + (each[side]?.probability ?? 0), 0);
  return element(
    "div",
    { class: "candidates" },
    element(
      "table",
      {},
      element("caption", {}, visible(caption)),
      element("thead", {}, element("tr", {}, element("th", { scope: "col", class: "name" }, "token"), ...["logit", "probability"].map((title) => element("th", { scope: "col" }, title)), element("td", {}))),
      element("tbody", {}, ...rows),
    ),
    element("p", { class: "quiet" }, edited ? `Upper line and grey bar: before. Lower line: after the edits. Together ${percentText(sum("before"))} before, ${percentText(sum("after"))} after.` : `Together ${percentText(sum("before"))} of the probability.`),
  );
}

/**
 * @param {Candidate} candidate
 * @param {{edited: boolean, written: number | null, action: Action | null, largest: number}} table
 */
function candidateRow({ before, after }, { edited, written, action, largest }) {
  const known = /** @type {NextToken} */ (before ?? after);
  const isWritten = known.id === written;
  const sides = edited ? [before, after] : [before];
  const lines = (/** @type {(token: NextToken) => string} */ text) => sides.map((side) => element("span", { class: "line" }, side ? text(side) : "–"));
  const bars = sides.map((side) => shareBar((side?.probability ?? 0) / largest));
  if (edited) bars[0]?.classList.add("former");
  return element(
    "tr",
    { class: isWritten && "chosen", "aria-current": isWritten && "true", "data-id": known.id },
    element("th", { scope: "row", class: "name" }, tokenCell(known, action)),
    element("td", {}, ...lines(({ logit }) => logit.toFixed(2).replace("-", "−"))),
    element("td", {}, ...lines(({ probability }) => weightText(probability))),
    element("td", { class: "bars" }, ...bars),
  );
}

/**
 * @param {NextToken} next
 * @param {Action | null} action
 */
function tokenCell({ token: name, text }, action) {
  if (!action || text === null) return element("span", { class: "plain" }, ...tokenName(name));
  return element("button", { type: "button", title: action.name, "aria-label": `${visible(name)}: ${action.name}`, onclick: () => action.choose(text) }, ...tokenName(name));
}

/**
 * A token whose space before the word is seen: " a" and "a" are two of a table.
 * @param {string} text
 */
export function tokenName(text) {
  return /^ +[^ ]/u.test(text) ? [element("span", { class: "space", "aria-hidden": "true" }, "␣"), token(text.slice(1))] : [token(text)];
}

/**
 * The tokens of two lists, each once: those before first, then those that came in.
 * @param {NextToken[]} before
 * @param {NextToken[]} after
 * @returns {Candidate[]}
 */
export function pairCandidates(before, after) {
  const ids = new Set([...before, ...after].map(({ id }) => id));
  const find = (/** @type {NextToken[]} */ list, /** @type {number} */ id) => list.find((each) => each.id === id) ?? null;
  return [...ids].map((id) => ({ before: find(before, id), after: find(after, id) }));
}
