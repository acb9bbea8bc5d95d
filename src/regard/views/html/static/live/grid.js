/** The largest change of each later head's weights: a cell for each head, which leads to it. */

import { isDark, rampColour } from "../core/colour.js";
import { element, percentText, token } from "../core/dom.js";
import { gridStep } from "../heads/order.js";

/** @typedef {import("./engine.js").HeadChange} HeadChange */
/** @typedef {import("./engine.js").Movement} Movement */

/** @param {import("../page.js").Page} page */
export function changeGrid({ data, store }) {
  const body = element("div", { class: "cells", role: "group", "aria-label": "Largest change of a weight in each head" });
  const readout = element("p", { class: "readout" });
  const root = element("div", { class: "change-grid" }, element("p", { class: "quiet" }, "Rows are layers, columns are heads: the largest change of a weight in each, in per cent of a row. A click goes to that row and key."), element("div", { class: "wide" }, body), readout);
  /** @type {HTMLButtonElement[]} */
  let cells = [];
  /** @type {Movement | null} */
  let shown = null;
  let columns = 1;

  /** @param {Movement | null} movement */
  function update(movement) {
    root.hidden = !movement || movement.heads.length === 0;
    if (movement === shown) {
      mark();
      return;
    }
    shown = movement;
    if (!movement || root.hidden) return;
    const focused = cells.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    fill(movement.heads);
    mark();
    if (focused >= 0) cells[focused]?.focus({ preventScroll: true });
    const strongest = movement.heads.reduce((best, each) => (size(each) > size(best) ? each : best));
    describe(strongest);
  }

  /** @param {HeadChange[]} heads */
  function fill(heads) {
    const largest = Math.max(...heads.map(size)) || 1;
    columns = Math.max(...data.facts.attentions.map((attention) => attention.heads.length));
    body.style.setProperty("--columns", String(columns));
    const attentions = [...new Set(heads.map(({ attention }) => attention))];
    const groups = new Set(attentions.map((attention) => data.attention(attention).group));
    cells = [];
    /** @type {HTMLElement[]} */
    const parts = [element("span", { class: "layer" }, "head"), ...Array.from({ length: columns }, (_, head) => element("span", { class: "number" }, String(head)))];
    for (const attention of attentions) {
      const { layer, group } = data.attention(attention);
      parts.push(element("span", { class: "layer" }, groups.size > 1 ? `${group} ${layer}` : String(layer)));
      for (const each of heads) if (each.attention === attention) parts.push(cell(each, largest));
    }
    body.replaceChildren(...parts);
  }

  /**
   * @param {HeadChange} change
   * @param {number} largest
   */
  function cell(change, largest) {
    const { attention, head, query, key } = change;
    const [red, green, blue] = rampColour(0.85 * Math.sqrt(size(change) / largest), isDark());
    const button = element(
      "button",
      { type: "button", class: "cell", tabindex: -1, "aria-label": changeText(change), "data-attention": attention, "data-head": head, "data-change": change.after - change.before, onclick: () => store.set({ attention, head, query, key, viewport: null }), onfocus: () => focused(button, change), onpointerenter: () => describe(change) },
      shortChange(change),
    );
    button.style.background = `rgb(${red} ${green} ${blue})`;
    button.style.color = 0.3 * red + 0.59 * green + 0.11 * blue > 130 ? "#10141a" : "#ffffff";
    cells.push(button);
    return button;
  }

  /**
   * @param {HTMLButtonElement} button
   * @param {HeadChange} change
   */
  function focused(button, change) {
    rove(button);
    describe(change);
  }

  /** One cell can be tabbed to; arrows lead to the others. @param {HTMLButtonElement | undefined} to */
  function rove(to) {
    for (const button of cells) button.tabIndex = button === to ? 0 : -1;
  }

  body.addEventListener("keydown", (event) => {
    const from = cells.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const to = from < 0 ? null : gridStep(event.key, from, cells.length, columns);
    if (to === null) return;
    event.preventDefault();
    cells[to]?.focus();
  });

  function mark() {
    const { attention, head } = store.state;
    const current = cells.find(({ dataset }) => Number(dataset.attention) === attention && Number(dataset.head) === head);
    for (const button of cells) button.toggleAttribute("data-current", button === current);
    if (!cells.some((button) => button === document.activeElement)) rove(current ?? cells[0]);
  }

  /** @param {HeadChange} change */
  function changeText({ attention, head, query, key, before, after }) {
    return `layer ${data.attention(attention).layer}, head ${data.headFacts(attention, head).number}: query ${query} to key ${key} from ${percentText(before)} to ${percentText(after)}`;
  }

  /** @param {HeadChange} change */
  function describe({ attention, head, query, key, before, after }) {
    const { queries, keys } = data.tokens(attention);
    readout.replaceChildren(
      `Layer ${data.attention(attention).layer}, head ${data.headFacts(attention, head).number}: `,
      element("span", { class: "position" }, `${query} `),
      token(queries[query] ?? ""),
      " → ",
      element("span", { class: "position" }, `${key} `),
      token(keys[key] ?? ""),
      ` from ${percentText(before)} to ${percentText(after)}`,
    );
  }
  return { root, update };
}

/** @param {HeadChange} change */
function size({ before, after }) {
  return Math.abs(after - before);
}

/** @param {HeadChange} change */
function shortChange({ before, after }) {
  const change = (after - before) * 100;
  const size = Math.abs(change);
  if (size < 0.05) return "0";
  return `${change < 0 ? "−" : "+"}${size < 0.95 ? size.toFixed(1).slice(1) : size.toFixed(0)}`;
}
