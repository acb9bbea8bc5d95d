/** The largest weights of the token that is looked at, to be read: per cent and a bar, for each head that is drawn. */

import { make, percent, token } from "../core/dom.js";
import { swatch } from "./headlegend.js";
import { strongestOf } from "./picked.js";

/** @typedef {import("./scene.js").Scene} Scene */
/** @typedef {import("./scene.js").Focus} Focus */

/** So many are listed for one head, and for each of several. */
const STRONGEST_LISTED = [12, 6];

/**
 * @param {(token: Focus) => void} go what happens when a token of the list is chosen
 */
export function strongestList(go) {
  const title = make("h2", {});
  const tables = make("div", { class: "tables" });
  const element = make("section", { class: "strongest", "aria-label": "Largest weights" }, title, tables);
  /** @type {{rows: StrongestRow[], rest: HTMLElement}[]} */
  let parts = [];
  /** @type {Scene | null} */
  let made = null;
  /** What the rows stand for at the moment. @type {"query" | "key"} */
  let side = "key";

  /** @param {Scene} scene */
  function build(scene) {
    const listed = Number(STRONGEST_LISTED[scene.heads.length > 1 ? 1 : 0]);
    parts = scene.heads.map(() => ({
      rows: Array.from({ length: listed }, () => strongestRow((index) => go({ side, index }))),
      rest: make("p", { class: "rest" }),
    }));
    tables.replaceChildren(
      ...scene.heads.map(({ number, colour, dash }, i) => {
        const part = /** @type {{rows: StrongestRow[], rest: HTMLElement}} */ (parts[i]);
        const caption = make("caption", {}, swatch(colour, dash), ` Head ${number}`);
        return make("div", { "data-head": number }, make("table", {}, caption, make("tbody", {}, ...part.rows.map(({ row }) => row))), part.rest);
      }),
    );
    made = scene;
  }

  /**
   * @param {Scene} scene
   * @param {Focus} focus
   */
  function show(scene, focus) {
    if (scene !== made) build(scene);
    side = focus.side === "query" ? "key" : "query";
    const names = focus.side === "query" ? scene.tokens.queries : scene.tokens.keys;
    const others = focus.side === "query" ? scene.tokens.keys : scene.tokens.queries;
    title.replaceChildren(
      focus.side === "query" ? "Query " : "Key ",
      `${focus.index} `,
      token(names[focus.index] ?? "", { class: "looker" }),
      focus.side === "query" ? " looks at these keys" : " is looked at by these queries",
    );
    parts.forEach(({ rows, rest }, head) => {
      const weights = scene.weights(head, focus);
      const found = weights ? strongestOf(weights, rows.length) : [];
      rows.forEach((row, i) => row.show(found[i] ?? null, others, side));
      const unknown = focus.side === "query" ? "These weights are not in this page: its foot says how to get them." : "Computing what each query gives to this key.";
      rest.textContent = weights ? remainingWords(weights, found, focus, scene.heads[head]?.read.sink ?? null) : unknown;
    });
  }
  return { element, show };
}

/** @typedef {ReturnType<typeof strongestRow>} StrongestRow */

/** @param {(index: number) => void} go */
function strongestRow(go) {
  let at = 0;
  const place = make("td", { class: "place" });
  const name = make("button", { type: "button", class: "plain", onclick: () => go(at) });
  const share = make("td", { class: "share" });
  const bar = make("div", { class: "bar" });
  const row = make("tr", {}, place, make("th", { scope: "row" }, name), share, make("td", { class: "bars", "aria-hidden": "true" }, bar));

  /**
   * @param {{index: number, weight: number} | null} found
   * @param {string[]} texts
   * @param {"query" | "key"} side
   */
  function show(found, texts, side) {
    row.hidden = found === null;
    if (!found) return;
    at = found.index;
    place.textContent = String(at);
    name.replaceChildren(token(texts[at] ?? ""));
    share.textContent = percent(found.weight);
    bar.style.width = `${found.weight * 100}%`;
    delete row.dataset.key;
    delete row.dataset.query;
    row.dataset[side] = String(at);
    row.dataset.weight = String(found.weight);
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
export function remainingWords(weights, listed, { side }, sink) {
  let sum = 0;
  let count = 0;
  for (let i = 0; i < weights.length; i++) {
    const weight = Number(weights[i]);
    if (!Number.isNaN(weight)) count++;
    if (weight > 0) sum += weight;
  }
  if (side === "key") {
    const missing = count < weights.length ? ` Of ${weights.length} queries, ${count} are in this page.` : "";
    return `It gets ${percent(count ? sum / count : 0)} of a query's attention on average.${missing}`;
  }
  if (sum === 0) return "This query may attend to nothing: its weights are 0.";
  const rest = listed.reduce((left, { weight }) => left - weight, sum);
  const others = weights.length - listed.length;
  const parts = [others > 0 ? `All other ${others} keys together: ${percent(Math.max(0, rest))}.` : "These are all keys."];
  if (sink !== null) parts.push(`The head's own sink takes ${percent(Math.max(0, 1 - sum))}.`);
  return parts.join(" ");
}
