/** The largest weights of the token in focus as a list: per cent and a bar, for each shown head. */

import { element, percentText, token } from "../core/dom.js";
import { swatch } from "./legend.js";
import { topWeights } from "./topk.js";

/** @typedef {import("./model.js").SentenceModel} SentenceModel */
/** @typedef {import("./model.js").Focus} Focus */

/** The number of listed keys for one head, and for each of several. */
const LISTED_KEYS = [12, 6];

/**
 * @param {(token: Focus) => void} go what happens when a token of the list is chosen
 */
export function topList(go) {
  const title = element("h2", {});
  const tables = element("div", { class: "tables" });
  const root = element("section", { class: "strongest", "aria-label": "Largest weights" }, title, tables);
  /** @type {{rows: TopRow[], rest: HTMLElement}[]} */
  let parts = [];
  /** @type {SentenceModel | null} */
  let builtFor = null;
  /** Whether the rows are queries or keys. @type {"query" | "key"} */
  let side = "key";

  /** @param {SentenceModel} model */
  function build(model) {
    const listed = Number(LISTED_KEYS[model.heads.length > 1 ? 1 : 0]);
    parts = model.heads.map(() => ({
      rows: Array.from({ length: listed }, () => topRow((index) => go({ side, index }))),
      rest: element("p", { class: "rest" }),
    }));
    tables.replaceChildren(
      ...model.heads.map(({ number, colour, dash }, i) => {
        const part = /** @type {{rows: TopRow[], rest: HTMLElement}} */ (parts[i]);
        const caption = element("caption", {}, swatch(colour, dash), ` Head ${number}`);
        return element("div", { "data-head": number }, element("table", {}, caption, element("tbody", {}, ...part.rows.map(({ row }) => row))), part.rest);
      }),
    );
    builtFor = model;
  }

  /**
   * @param {SentenceModel} model
   * @param {Focus} focus
   */
  function show(model, focus) {
    if (model !== builtFor) build(model);
    side = focus.side === "query" ? "key" : "query";
    const names = focus.side === "query" ? model.tokens.queries : model.tokens.keys;
    const others = focus.side === "query" ? model.tokens.keys : model.tokens.queries;
    title.replaceChildren(
      focus.side === "query" ? "Query " : "Key ",
      `${focus.index} `,
      token(names[focus.index] ?? "", { class: "looker" }),
      focus.side === "query" ? " looks at these keys" : " is looked at by these queries",
    );
    parts.forEach(({ rows, rest }, head) => {
      const weights = model.weights(head, focus);
      const top = weights ? topWeights(weights, rows.length) : [];
      rows.forEach((row, i) => row.show(top[i] ?? null, others, side));
      const unknown = focus.side === "query" ? "These weights are not in this page: the page's footer says how to get them." : "Computing what each query gives to this key.";
      rest.textContent = weights ? remainderText(weights, top, focus, model.heads[head]?.read.sink ?? null) : unknown;
    });
  }
  return { root, show };
}

/** @typedef {ReturnType<typeof topRow>} TopRow */

/** @param {(index: number) => void} go */
function topRow(go) {
  let index = 0;
  const place = element("td", { class: "place" });
  const name = element("button", { type: "button", class: "plain", onclick: () => go(index) });
  const share = element("td", { class: "share" });
  const bar = element("div", { class: "bar" });
  const row = element("tr", {}, place, element("th", { scope: "row" }, name), share, element("td", { class: "bars", "aria-hidden": "true" }, bar));

  /**
   * @param {{index: number, weight: number} | null} top
   * @param {string[]} texts
   * @param {"query" | "key"} side
   */
  function show(top, texts, side) {
    row.hidden = top === null;
    if (!top) return;
    index = top.index;
    place.textContent = String(index);
    name.replaceChildren(token(texts[index] ?? ""));
    share.textContent = percentText(top.weight);
    bar.style.width = `${top.weight * 100}%`;
    delete row.dataset.key;
    delete row.dataset.query;
    row.dataset[side] = String(index);
    row.dataset.weight = String(top.weight);
  }
  return { row, show };
}

/**
 * What the list leaves out.
 * @param {ArrayLike<number>} weights
 * @param {{weight: number}[]} listed
 * @param {Focus} focus
 * @param {number | null} sink
 */
export function remainderText(weights, listed, { side }, sink) {
  let sum = 0;
  let count = 0;
  for (let i = 0; i < weights.length; i++) {
    const weight = Number(weights[i]);
    if (!Number.isNaN(weight)) count++;
    if (weight > 0) sum += weight;
  }
  if (side === "key") {
    const missing = count < weights.length ? ` Of ${weights.length} queries, ${count} are in this page.` : "";
    return `It gets ${percentText(count ? sum / count : 0)} of a query's attention on average.${missing}`;
  }
  if (sum === 0) return "This query may attend to nothing: its weights are 0.";
  const rest = listed.reduce((left, { weight }) => left - weight, sum);
  const others = weights.length - listed.length;
  const parts = [others > 0 ? `All other ${others} keys together: ${percentText(Math.max(0, rest))}.` : "These are all keys."];
  if (sink !== null) parts.push(`The head's own sink takes ${percentText(Math.max(0, 1 - sum))}.`);
  return parts.join(" ");
}
