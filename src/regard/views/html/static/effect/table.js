/** What was looked at beside what mattered: a row and two bars for each head, layer, token or edge. */

import { largest, NOUNS, partOrders, ranks, shortNumber, sortParts } from "./order.js";
import { field } from "../core/controls.js";
import { element, token, visible } from "../core/dom.js";
import { gridStep } from "../heads/order.js";
import { openMap } from "../map/open.js";
import { shareBar, signedBar } from "../row/bars.js";

/** @typedef {import("./order.js").EffectFacts} EffectFacts */
/** @typedef {import("./order.js").EffectPart} EffectPart */
/** @typedef {import("./order.js").PartOrder} PartOrder */

/** The number of rows until the reader wants all. */
const FIRST_ROWS = 30;

/**
 * @param {import("../page.js").Page} page
 * @param {EffectFacts} facts
 */
export function effectTable(page, facts) {
  const { data, store } = page;
  const { parts } = facts;
  const [noun = "", nouns = ""] = NOUNS[facts.over];
  const measures = [
    facts.looked_at !== null && { name: /** @type {const} */ ("looked_at"), title: "looked at", scale: largest(parts, ["looked_at"]), ranks: ranks(parts, "looked_at") },
    facts.has_exact && { name: /** @type {const} */ ("effect"), title: "effect", scale: largest(parts, ["effect", "estimate"]), ranks: ranks(parts, "effect") },
    facts.has_estimates && { name: /** @type {const} */ ("estimate"), title: "estimate", scale: largest(parts, ["effect", "estimate"]), ranks: facts.has_exact ? null : ranks(parts, "effect") },
  ].filter((measure) => measure !== false);
  const hasTypes = facts.over === "heads" && parts.some(({ head }) => head !== null);
  /** @type {PartOrder} */
  let order = "effect";
  let all = false;
  /** @type {Map<EffectPart, HTMLTableRowElement>} */
  let rows = new Map();

  const orders = partOrders(facts);
  const select = element("select", { class: "order", onchange: () => arrange(/** @type {PartOrder} */ (select.value)) }, ...orders.map(([value, text]) => element("option", { value }, text)));
  const more = element("button", { type: "button", class: "more", onclick: () => arrange(order, !all) });
  const count = element("output", { class: "count" });
  const heads = measures.map(({ name, title }) => ({ name, cell: element("th", { scope: "col" }, title) }));
  const body = element("tbody", {});
  const table = element(
    "table",
    { class: "effects" },
    element("caption", {}, `${facts.looked_at === null ? "What mattered" : "Looked at beside mattered"}: every ${noun}, with its rank`),
    element("thead", {}, element("tr", {}, element("th", { scope: "col", class: "name" }, noun), hasTypes && element("th", { scope: "col", class: "kind" }, "type"), ...heads.map(({ cell }) => cell))),
    body,
  );
  const root = element("div", { class: "listed" }, element("div", { class: "tools" }, field("Sort by", select), count), element("div", { class: "wide" }, table), parts.length > FIRST_ROWS && more);

  /**
   * @param {PartOrder} newOrder
   * @param {boolean} [showAll]
   */
  function arrange(newOrder, showAll = all) {
    order = newOrder;
    all = showAll;
    const shown = sortParts(parts, order).slice(0, all ? parts.length : FIRST_ROWS);
    rows = new Map(shown.map((part) => [part, partRow(part)]));
    body.replaceChildren(...rows.values());
    const omitted = facts.num_parts > parts.length ? `; this page has the ${parts.length} strongest of ${facts.num_parts}` : "";
    count.textContent = shown.length < parts.length || omitted ? `${shown.length} of ${parts.length} ${nouns}${omitted}` : "";
    more.textContent = all ? `Show ${FIRST_ROWS} ${nouns}` : `Show all ${parts.length} ${nouns}`;
    const sorted = order === "looked_at" ? "looked_at" : order === "place" ? "" : facts.has_exact ? "effect" : "estimate";
    for (const { name, cell } of heads) {
      if (name === sorted) cell.setAttribute("aria-sort", order === "lowers" ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
    mark();
  }

  /** @param {EffectPart} part */
  function partRow(part) {
    const { attention, head } = part;
    const type = hasTypes && element("td", { class: "kind" }, attention === null || head === null ? "" : data.headFacts(attention, head).head_type);
    const cells = measures.map(({ name, scale, ranks: places }) => measureCell(part[name], name, scale, places?.get(part) ?? null));
    return element(
      "tr",
      { "data-attention": attention, "data-head": head, "data-token": part.token, "data-effect": part.effect, "data-estimate": part.estimate, "data-looked-at": part.looked_at },
      element("th", { scope: "row", class: "name" }, partName(part)),
      type,
      ...cells,
    );
  }

  /** @param {EffectPart} part */
  function partName(part) {
    if (part.token !== null) return element("span", {}, element("span", { class: "position" }, `${part.token} `), token(data.textTokens(facts.text ?? 0)[part.token] ?? ""));
    if (part.attention === null) return element("span", { class: "token" }, visible(part.name));
    const attention = part.attention;
    const label = facts.over === "heads" ? `layer ${data.attention(attention).layer}, head ${part.name.split(".").at(-1)}: open its map` : `${part.name}: open its map`;
    return element(
      "button",
      { type: "button", class: "go", tabindex: -1, "aria-label": label, title: "Open its map", onclick: () => openMap(page, attention, part.head ?? Math.min(store.state.head, data.attention(attention).heads.length - 1)), onfocus: (/** @type {FocusEvent} */ event) => rove(/** @type {HTMLButtonElement} */ (event.currentTarget)) },
      visible(part.name),
    );
  }

  const buttons = () => /** @type {HTMLButtonElement[]} */ ([...body.querySelectorAll("button.go")]);

  /**
   * One head can be tabbed to; arrows lead to the others.
   * @param {HTMLButtonElement | undefined} to
   */
  function rove(to) {
    for (const button of buttons()) button.tabIndex = button === to ? 0 : -1;
  }

  body.addEventListener("keydown", (event) => {
    const every = buttons();
    const from = every.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    if (from < 0 || event.key === "ArrowLeft" || event.key === "ArrowRight") return;
    const to = gridStep(event.key, from, every.length, 1);
    if (to === null) return;
    event.preventDefault();
    every[to]?.focus();
  });

  /** Marks the head that the other views show. */
  function mark() {
    const { attention, head } = store.state;
    let current = buttons()[0];
    for (const [part, row] of rows) {
      const isCurrent = part.head !== null && part.attention === attention && part.head === head;
      row.classList.toggle("chosen", isCurrent);
      const button = row.querySelector("button");
      if (isCurrent) button?.setAttribute("aria-current", "true");
      else button?.removeAttribute("aria-current");
      if (isCurrent && button) current = button;
    }
    rove(current);
  }

  arrange(order);
  return {
    root,
    mark,
    /**
     * Marks the row of a token.
     * @param {EffectPart | null} chosen
     */
    choose(chosen) {
      for (const [part, row] of rows) row.classList.toggle("chosen", part === chosen);
    },
  };
}

/**
 * A number, its rank and its bar.
 * @param {number | null} value
 * @param {"looked_at" | "effect" | "estimate"} name
 * @param {number} scale the number whose bar is full
 * @param {number | null} rank
 */
function measureCell(value, name, scale, rank) {
  const bar = value === null ? element("span", {}) : name === "looked_at" ? shareBar(value / scale) : effectBar(value / scale, name === "estimate");
  const number = element("span", { class: "value" }, shortNumber(value), value !== null && rank !== null && element("span", { class: "rank" }, ` #${rank}`));
  return element("td", { class: `measure ${name}` }, element("div", {}, number, bar));
}

/**
 * A bar from the middle; hollow for an estimate.
 * @param {number} share -1 to 1
 * @param {boolean} isEstimate
 */
function effectBar(share, isEstimate) {
  const bar = signedBar(share);
  bar.classList.toggle("hollow", isEstimate);
  return bar;
}

