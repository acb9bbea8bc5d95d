/** What a map shows around the chosen query, as a table: for those who read and do not look. */

import { element, percentText, token } from "../core/dom.js";
import { queryPicker, missingRowNotice } from "../row/picker.js";
import { keysByWeight, weightText } from "../row/format.js";

/** @typedef {import("../page.js").Page} Page */
/** @typedef {import("../core/store.js").State} State */

/** The number of listed keys. */
const STRONGEST_KEYS = 8;

/**
 * A share in per cent; what is too small for one digit behind the point gets more.
 * @param {number} share
 */
export function shareText(share) {
  if (share === 0) return "0 %";
  return share < 0.00095 ? weightText(share) : percentText(share);
}

/**
 * @param {Page} page
 */
export function mapTable(page) {
  const { data, store } = page;
  const picker = queryPicker(page);
  const content = element("div", { class: "wide" });
  const root = element("section", { class: "row-table", "aria-label": "The chosen query in words" }, element("h2", {}, "The chosen query in numbers"), picker.root, content);

  /**
   * @param {State} state
   * @param {State | null} before
   */
  function update(state, before) {
    picker.update(state, before);
    const { attention, head, query, key } = state;
    if (before && before.attention === attention && before.head === head && before.query === query && before.key === key) return;
    const row = data.row(attention, head, query);
    content.replaceChildren(row ? table(row.weights, state) : (missingRowNotice(page, state) ?? ""), row ? "" : pairsTable(page, attention, head));
  }

  /**
   * @param {Float64Array} weights
   * @param {State} state
   */
  function table(weights, { attention, head, query, key }) {
    const tokens = data.tokens(attention);
    const order = keysByWeight(weights).slice(0, STRONGEST_KEYS);
    if (key !== null && !order.includes(key)) order.push(key);
    const neighbours = [query - 1, query, query + 1].flatMap((each) => {
      const row = each === query ? weights : each < 0 || each >= tokens.queries.length ? null : (data.row(attention, head, each)?.weights ?? null);
      return row ? [{ query: each, weights: row }] : [];
    });
    const name = (/** @type {number} */ each) => [`${each} `, token(tokens.queries[each] ?? "")];
    return element(
      "table",
      {},
      element("caption", {}, "The keys that query ", ...name(query), " gives most weight to, and what its neighbours give them."),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "key"), ...neighbours.map((each) => element("th", { scope: "col", class: each.query === query ? "here" : "" }, "query ", ...name(each.query))))),
      element("tbody", {}, ...order.map((each) => tableRow(each))),
    );

    /** @param {number} each */
    function tableRow(each) {
      const isChosen = each === key;
      const choose = element("button", { type: "button", class: "key", "aria-pressed": String(isChosen), onclick: () => store.set({ key: each }) }, `${each} `, token(tokens.keys[each] ?? ""));
      return element(
        "tr",
        { class: isChosen ? "chosen" : "" },
        element("th", { scope: "row" }, choose),
        ...neighbours.map((row) => {
          const weight = Number(row.weights[each]);
          return element("td", { class: row.query === query ? "here" : "", "data-query": row.query, "data-key": each, "data-weight": weight }, shareText(weight));
        }),
      );
    }
  }
  return { root, update };
}

/**
 * The strongest pairs of tokens of a head, as the page lists them.
 * @param {Page} page
 * @param {number} attention
 * @param {number} head
 */
export function pairsTable({ data }, attention, head) {
  const { pairs } = data.headFacts(attention, head);
  const tokens = data.tokens(attention);
  if (!pairs.length) return element("p", {}, "No pair of tokens stands out.");
  const side = (/** @type {number} */ at, /** @type {string | undefined} */ text) => element("th", { scope: "row" }, `${at} `, token(text ?? ""));
  return element(
    "table",
    { class: "pairs" },
    element("caption", {}, "The strongest pairs of two tokens of the text"),
    element("thead", {}, element("tr", {}, ...["query", "key", "weight"].map((name) => element("th", { scope: "col" }, name)))),
    element(
      "tbody",
      {},
      ...pairs.map(({ query, key, weight }) =>
        element("tr", {}, side(query, tokens.queries[query]), side(key, tokens.keys[key]), element("td", { "data-query": query, "data-key": key, "data-weight": weight }, shareText(weight))),
      ),
    ),
  );
}
