/** The choice of a query, and a notice where the page has no row of it. */

import { element, visible } from "../core/dom.js";
import { field } from "../core/controls.js";
import { findToken } from "./format.js";

/** @typedef {import("../core/store.js").State} State */
/** @typedef {import("../page.js").Page} Page */

/** The most tokens in a list to choose from; longer texts have a search field. */
const MAX_LIST_TOKENS = 512;

/**
 * A token's text, short enough for a list or a label.
 * @param {string | undefined} text
 */
export function shortToken(text) {
  const letters = [...visible(text ?? "")];
  return letters.length > 24 ? `${letters.slice(0, 23).join("")}…` : letters.join("");
}

/**
 * Says of a button that it can do nothing now. It keeps the focus, which a disabled one would lose.
 * @param {HTMLElement} button
 * @param {boolean} idle
 */
export function setDisabled(button, idle) {
  button.setAttribute("aria-disabled", String(idle));
}

/**
 * The picker of the query: a list, or for long texts a field, between "previous" and "next".
 * @param {Page} page
 */
export function queryPicker({ data, store }) {
  const list = element("select", { class: "query", onchange: () => store.set({ query: Number(list.value) }) });
  const search = element("input", { type: "search", class: "query", placeholder: "position or token", autocomplete: "off" });
  const message = element("span", { class: "quiet", role: "status" });
  const listField = field("Query", list);
  const searchField = field("Query: position or token, then Enter", search);
  const previous = element("button", { type: "button", onclick: () => step(-1), "aria-label": "Previous query" }, "‹", element("span", { class: "word" }, " Previous"));
  const next = element("button", { type: "button", onclick: () => step(1), "aria-label": "Next query" }, element("span", { class: "word" }, "Next "), "›");
  const root = element("div", { class: "query-picker" }, previous, listField, searchField, next, message);

  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const { attention, head, query } = store.state;
    const index = findToken(data.tokens(attention).queries, search.value, query, (each) => data.hasRow(attention, head, each));
    message.textContent = index < 0 ? `No query here is "${shortToken(search.value)}": a position such as 7, or a part of a token, is wanted.` : "";
    if (index >= 0) store.set({ query: index });
  });

  /**
   * The nearest row on one side; -1 where there is none.
   * @param {number} by
   */
  function neighbour(by) {
    const { attention, head, query } = store.state;
    const rows = data.head(attention, head)?.rows;
    if (!rows) {
      const target = query + by;
      return target >= 0 && target < data.attention(attention).queries ? target : -1;
    }
    return (by > 0 ? rows.find((row) => row > query) : rows.findLast((row) => row < query)) ?? -1;
  }

  /** @param {number} by */
  function step(by) {
    const target = neighbour(by);
    if (target >= 0) store.set({ query: target });
  }

  /**
   * @param {State} state
   * @param {State | null} before
   */
  function update(state, before) {
    const { attention, head, query } = state;
    const { queries } = data.tokens(attention);
    const isLong = queries.length > MAX_LIST_TOKENS;
    listField.hidden = isLong;
    searchField.hidden = !isLong;
    if (!before || before.attention !== attention || before.head !== head) {
      const option = (/** @type {string} */ text, /** @type {number} */ i) =>
        element("option", { value: i, disabled: !data.hasRow(attention, head, i) }, `${i}  ${shortToken(text)}`);
      list.replaceChildren(...(isLong ? [] : queries.map(option)));
      message.textContent = "";
    }
    if (!isLong) list.value = String(query);
    else if (document.activeElement !== search) search.value = `${query}  ${shortToken(queries[query])}`;
    setDisabled(previous, neighbour(-1) < 0);
    setDisabled(next, neighbour(1) < 0);
  }
  return { root, update };
}

/**
 * What is said in place of a row that the page does not carry; null where it does.
 * @param {Page} page
 * @param {State} state
 */
export function missingRowNotice({ data, store }, { attention, head, query }) {
  const decoded = data.head(attention, head);
  if (decoded && data.hasRow(attention, head, query)) return null;
  const hint = " The page's footer says what is omitted, and how to get it.";
  if (decoded) {
    const rows = [...(decoded.rows ?? [])];
    const nearestRow = rows.reduce((best, row) => (Math.abs(row - query) < Math.abs(best - query) ? row : best), rows[0] ?? 0);
    const go = element("button", { type: "button", onclick: () => store.set({ query: nearestRow }) }, `Go to query ${nearestRow}, the nearest that is here`);
    return element("div", { class: "missing" }, element("p", {}, `The row of query ${query} is not in this page.${hint}`), rows.length > 0 && go);
  }
  const places = data.facts.attentions.flatMap((each, index) =>
    each.heads.flatMap((other, place) => (other.payload ? [{ index, place, distance: Math.abs(index - attention) }] : [])),
  );
  const nearest = places.sort((a, b) => a.distance - b.distance)[0];
  const sentence = element("p", {}, `This head is in the page as a picture only.${hint}`);
  if (!nearest) return element("div", { class: "missing" }, sentence);
  const { layer, queries, group } = data.attention(nearest.index);
  const { number } = data.headFacts(nearest.index, nearest.place);
  const target = { attention: nearest.index, head: nearest.place, query: Math.min(query, queries - 1), key: null, viewport: null };
  const groupName = group === data.attention(attention).group ? "" : `${group}, `;
  return element("div", { class: "missing" }, sentence, element("button", { type: "button", onclick: () => store.set(target) }, `Go to ${groupName}layer ${layer}, head ${number}`));
}

/**
 * Whether the page has any row.
 * @param {import("../core/data.js").Data} data
 */
export function hasRows(data) {
  return data.facts.attentions.some((attention) => attention.heads.some((head) => head.payload));
}
