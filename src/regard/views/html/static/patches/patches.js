/** The image whose patches are the tokens, with the weights of one query over it. */

import { field } from "../core/controls.js";
import { element, percentText, token } from "../core/dom.js";
import { paintHeat, paintHeatScale, paintFrames } from "./heatmap.js";
import { nextPatch, patchName, patchOfToken, patchShares, tokenOfPatch } from "./grid.js";
import { topWeights } from "../sentence/topk.js";

/** @typedef {import("../core/data.js").Image} Image */
/** @typedef {import("../core/store.js").State} State */

/** The number of listed keys. */
const LISTED_PATCHES = 10;

/** With more queries that are no patches, a list replaces the buttons. */
const QUERY_BUTTONS = 12;

/** @type {import("../main.js").View} */
export const patches = {
  name: "patches",
  title: "Image",
  help: "The model sees the image as patches. Choose one by a click or the arrow keys: the heat shows how much it takes from each patch.",
  fits: (data) => data.facts.image !== null,
  mount: mountPatches,
};

/**
 * @param {HTMLElement} root
 * @param {import("../main.js").Page} page
 */
function mountPatches(root, { data, store }) {
  const image = /** @type {Image} */ (data.facts.image);
  const last = image.first_patch + image.rows * image.columns;
  /** The patch under the mouse. @type {number | null} */
  let hovered = null;
  let opacity = 0.7;
  /** @type {Float64Array | null} */
  let weights = null;

  const picture = element("img", { src: image.source, alt: "The image that the model was given" });
  const heat = element("canvas", { class: "heat", role: "img" });
  const marks = element("canvas", { class: "marks", "aria-hidden": "true" });
  const readout = element("p", { class: "readout" });
  const status = element("p", { class: "chosen", role: "status" });
  const grid = element(
    "div",
    {
      class: "grid",
      role: "application",
      tabindex: 0,
      "aria-label": `Patches of the image, ${image.rows} rows of ${image.columns}. The arrow keys choose the query.`,
      onpointermove: (/** @type {PointerEvent} */ event) => event.pointerType === "mouse" && hover(tokenUnder(event)),
      onpointerleave: () => hover(null),
      onclick: (/** @type {MouseEvent} */ event) => choose(tokenUnder(event)),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const { query, key } = store.state;
        const next = nextPatch(image, patchesAreQueries() ? query : (key ?? image.first_patch), event.key);
        if (next === null || event.ctrlKey || event.altKey || event.metaKey) return;
        event.preventDefault();
        choose(next);
      },
    },
    picture,
    heat,
    marks,
  );
  const scale = element("canvas", { class: "scale", "aria-hidden": "true" });
  const ticks = [0, 0.5, 1].map(() => element("span", {}));
  const slider = element("input", { type: "range", min: 0, max: 100, step: 5, value: opacity * 100, oninput: () => ((opacity = Number(slider.value) / 100), paint()) });
  const otherQueryBox = element("div", { class: "others" });
  const rows = element("tbody", {});
  const rest = element("p", { class: "rest" });
  const notice = element("div", { class: "missing", role: "status" });
  const listed = element("section", { class: "listed", "aria-label": "Strongest patches" }, element("h2", {}, "Takes most from"), element("table", {}, rows), rest);
  const legend = element("div", { class: "legend" }, scale, element("div", { class: "ticks" }, ...ticks), element("p", {}, "Colours by the square root of the weight, so that small ones are seen; the image is grey beneath them."));
  const body = element("div", { class: "body" }, element("div", {}, grid, readout, legend, field("Heat over the image", slider)), element("div", {}, otherQueryBox, status, listed));
  root.append(notice, body);
  new ResizeObserver(paint).observe(grid);

  /** Whether the queries are the patches too, and not tokens of another text. */
  function patchesAreQueries() {
    const { kind, queries } = data.attention(store.state.attention);
    return looksAtImage(store.state.attention) && kind !== "cross" && queries >= last;
  }

  /** @param {number} attention */
  function looksAtImage(attention) {
    return image.attentions.includes(attention);
  }

  /** @param {PointerEvent | MouseEvent} event */
  function tokenUnder(event) {
    const { left, top, width, height } = grid.getBoundingClientRect();
    const [rowChanged, column] = [Math.floor(((event.clientY - top) / height) * image.rows), Math.floor(((event.clientX - left) / width) * image.columns)];
    return rowChanged >= 0 && rowChanged < image.rows && column >= 0 && column < image.columns ? tokenOfPatch(image, rowChanged, column) : null;
  }

  /** @param {number | null} index */
  function choose(index) {
    if (index !== null) store.set(patchesAreQueries() ? { query: index } : { key: index });
  }

  /** @param {number | null} index */
  function hover(index) {
    if (index === hovered) return;
    hovered = index;
    paintCursor();
  }

  /** The frames around patches, and the text for the patch under the mouse. */
  function paintCursor() {
    const { query, key, attention } = store.state;
    paintFrames(marks, image, patchesAreQueries() ? query : null, [key, hovered]);
    const at = hovered ?? key;
    const weight = at === null ? undefined : weights?.[at];
    const { keys } = data.tokens(attention);
    readout.textContent = at === null || weight === undefined ? "Point at a patch to read its weight." : `${sentenceCase(patchName(image, at, keys))}: ${percentText(weight, 2)}`;
    if (weight === undefined || at === null) delete readout.dataset.key;
    else Object.assign(readout.dataset, { key: String(at), weight: String(weight) });
  }

  function paint() {
    if (root.hidden || !weights) return;
    const { shares, most } = patchShares(weights, image);
    // Under colours that say something the image is grey.
    picture.style.filter = opacity > 0 ? "grayscale(1)" : "";
    paintHeat(heat, image, shares, most, opacity);
    paintHeatScale(scale);
    ticks.forEach((tick, i) => (tick.textContent = percentText((i / 2) ** 2 * most, most < 0.04 ? 2 : 1)));
    paintCursor();
  }

  function list() {
    const { queries, keys } = data.tokens(store.state.attention);
    const { query } = store.state;
    const name = patchesAreQueries() ? patchName(image, query, queries) : `token ${query} '${queries[query]}'`;
    status.replaceChildren("Query: ", element("strong", {}, name));
    if (!weights) return;
    const topKeys = topWeights(weights, LISTED_PATCHES);
    rows.replaceChildren(
      ...topKeys.map(({ index, weight }) => {
        const bar = element("div", { class: "bar" });
        bar.style.width = `${weight * 100}%`;
        const place = patchOfToken(image, index);
        const button = element("button", { type: "button", class: "plain", onclick: () => store.set({ key: index }) }, place ? `row ${place.row}, column ${place.column}` : token(keys[index] ?? ""));
        return element(
          "tr",
          { "data-key": index, "data-weight": weight, onpointerenter: () => hover(index), onpointerleave: () => hover(null) },
          element("th", { scope: "row" }, button),
          element("td", {}, percentText(weight)),
          element("td", { class: "bars", "aria-hidden": "true" }, bar),
        );
      }),
    );
    const { sum } = patchShares(weights, image);
    const [strongestKey] = topKeys;
    const outside = weights.reduce((a, b) => a + b, 0) - sum;
    rest.textContent = keys.length > last - image.first_patch ? `All patches together get ${percentText(sum)}, other tokens ${percentText(outside)}.` : "";
    const most = strongestKey ? ` It takes most from ${patchName(image, strongestKey.index, keys)}, ${percentText(strongestKey.weight)}.` : "";
    heat.setAttribute("aria-label", `Weights of the query, ${name}, over the patches.${most}`);
  }

  /** Queries that are no patches: the class token, registers, the words of another text. */
  function listOtherQueries() {
    const { queries } = data.tokens(store.state.attention);
    const otherQueries = queries.map((text, index) => ({ text, index })).filter(({ index }) => !patchesAreQueries() || index < image.first_patch || index >= last);
    const go = (/** @type {number} */ query) => store.set({ query });
    if (otherQueries.length <= QUERY_BUTTONS) {
      const buttons = otherQueries.map(({ text, index }) => element("button", { type: "button", "data-query": index, onclick: () => go(index) }, token(text)));
      otherQueryBox.replaceChildren(...(buttons.length ? [element("span", {}, patchesAreQueries() ? "Or choose a token that is no patch: " : "Query: "), ...buttons] : []));
    } else {
      const select = element("select", { onchange: () => go(Number(select.value)) }, element("option", { value: "" }, "choose"), ...otherQueries.map(({ text, index }) => element("option", { value: index }, `${index} ${text.slice(0, 60)}`)));
      otherQueryBox.replaceChildren(field(patchesAreQueries() ? "Or choose a token that is no patch" : "Query", select));
    }
  }

  function showMissing() {
    const { attention, head, query } = store.state;
    const reasons = [];
    const candidates = data.facts.attentions.flatMap(({ heads }, at) => (looksAtImage(at) ? heads.flatMap(({ payload }, place) => (payload ? [{ attention: at, head: place }] : [])) : []));
    const go = candidates.find((each) => each.attention === attention) ?? candidates[0];
    if (!looksAtImage(attention)) reasons.push("The keys of this attention are not the patches of the image.");
    else if (data.head(attention, head) === null) reasons.push("This head is in the page as a picture only: the page's footer says how to get its weights.");
    else if (!weights) reasons.push(`The row of query ${query} is not in this page; the page's footer says how to get it.`);
    const button = go && reasons.length > 0 && (go.attention !== attention || go.head !== head);
    notice.replaceChildren(
      ...reasons.map((reason) => element("p", {}, reason)),
      ...(button ? [element("button", { type: "button", onclick: () => store.set({ ...go, query: Math.min(query, data.attention(go.attention).queries - 1), key: null, viewport: null }) }, "Go to a head that looks at the image")] : []),
    );
    body.hidden = !looksAtImage(attention) || data.head(attention, head) === null;
    body.classList.toggle("absent", !weights);
  }

  return (/** @type {State} */ state, /** @type {State | null} */ before) => {
    const rowChanged = before === null || ["attention", "head", "query"].some((name) => state[/** @type {"head"} */ (name)] !== before[/** @type {"head"} */ (name)]);
    if (rowChanged) {
      weights = looksAtImage(state.attention) ? (data.row(state.attention, state.head, state.query)?.weights ?? null) : null;
      showMissing();
      if (before === null || state.attention !== before.attention) listOtherQueries();
      for (const button of otherQueryBox.querySelectorAll("button")) button.setAttribute("aria-pressed", String(Number(button.dataset.query) === state.query));
      list();
      paint();
    } else if (state.key !== before?.key) paintCursor();
  };
}

/** @param {string} text */
function sentenceCase(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
