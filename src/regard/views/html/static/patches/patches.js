/** The image whose patches are tokens, with the weights of one query over its keys, or of one key over its queries. */

import { field } from "../core/controls.js";
import { element, percentText, token } from "../core/dom.js";
import { paintHeat, paintHeatScale, paintFrames } from "./heatmap.js";
import { nextPatch, patchName, patchOfToken, patchShares, tokenOfPatch } from "./grid.js";
import { choice, framed, otherChoice, sidesOf } from "./sides.js";
import { topWeights } from "../sentence/topk.js";

/** @typedef {import("../core/data.js").Image} Image */
/** @typedef {import("../core/store.js").State} State */
/** @typedef {import("./sides.js").Sides} Sides */

/** The number of listed tokens. */
const LISTED_PATCHES = 10;

/** With more tokens to choose from that are no patches, a list replaces the buttons. */
const TOKEN_BUTTONS = 12;

/** What is said of each side that lies over the image. */
const WORDS = {
  keys: { chosen: "Query", listed: "Takes most from", most: "It takes most from" },
  queries: { chosen: "Key", listed: "Take most from it", most: "Most is taken by the" },
};

/** @type {import("../page.js").View} */
export const patches = {
  name: "patches",
  title: "Image",
  help: "The model sees the image as patches. Choose one by a click or the arrow keys, or a word: the heat shows how much it takes from each patch. Where patches read words, it shows how much each patch takes from the word.",
  fits: (data) => data.facts.image !== null,
  mount: mountPatches,
};

/**
 * @param {HTMLElement} root
 * @param {import("../page.js").Page} page
 */
function mountPatches(root, { data, store }) {
  const image = /** @type {Image} */ (data.facts.image);
  /** The patch under the mouse. @type {number | null} */
  let hovered = null;
  let opacity = 0.7;
  /** @type {Sides | null} */
  let sides = null;

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
      onpointermove: (/** @type {PointerEvent} */ event) => event.pointerType === "mouse" && hover(tokenUnder(event)),
      onpointerleave: () => hover(null),
      onclick: (/** @type {MouseEvent} */ event) => choose(tokenUnder(event)),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const next = sides && nextPatch(sides.grid, sides.chosenGrid ? framed(sides) : sides.marked, event.key);
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
  const otherTokenBox = element("div", { class: "others" });
  const rows = element("tbody", {});
  const rest = element("p", { class: "rest" });
  const notice = element("div", { class: "missing", role: "status" });
  const listTitle = element("h2", {});
  const listed = element("section", { class: "listed", "aria-label": "Strongest patches" }, listTitle, element("table", {}, rows), rest);
  const legend = element("div", { class: "legend" }, scale, element("div", { class: "ticks" }, ...ticks), element("p", {}, "Colours by the square root of the weight, so that small ones are seen; the image is grey beneath them."));
  const body = element("div", { class: "body" }, element("div", {}, grid, readout, legend, field("Heat over the image", slider)), element("div", {}, otherTokenBox, status, listed));
  root.append(notice, body);
  new ResizeObserver(paint).observe(grid);

  /** @param {PointerEvent | MouseEvent} event */
  function tokenUnder(event) {
    if (!sides) return null;
    const { left, top, width, height } = grid.getBoundingClientRect();
    const [row, column] = [Math.floor(((event.clientY - top) / height) * sides.grid.rows), Math.floor(((event.clientX - left) / width) * sides.grid.columns)];
    return row >= 0 && row < sides.grid.rows && column >= 0 && column < sides.grid.columns ? tokenOfPatch(sides.grid, row, column) : null;
  }

  /** @param {number | null} index */
  function choose(index) {
    if (sides && index !== null) store.set(choice(sides, index));
  }

  /** @param {number | null} index */
  function hover(index) {
    if (index === hovered) return;
    hovered = index;
    paintCursor();
  }

  /** The frames around patches, and the text for the patch under the mouse. */
  function paintCursor() {
    if (!sides) return;
    paintFrames(marks, sides.grid, framed(sides), [sides.painted === "keys" ? sides.marked : null, hovered]);
    const at = hovered ?? sides.marked;
    const weight = at === null ? undefined : sides.weights?.[at];
    readout.textContent = at === null || weight === undefined ? "Point at a patch to read its weight." : `${sentenceCase(patchName(sides.grid, at, sides.tokens))}: ${percentText(weight, 2)}`;
    if (weight === undefined || at === null) delete readout.dataset.token;
    else Object.assign(readout.dataset, { token: String(at), weight: String(weight) });
  }

  function paint() {
    if (root.hidden || !sides?.weights) return;
    const { shares, most } = patchShares(sides.weights, sides.grid);
    // Under colours that say something the image is grey.
    picture.style.filter = opacity > 0 ? "grayscale(1)" : "";
    paintHeat(heat, sides.grid, shares, most, opacity);
    paintHeatScale(scale);
    ticks.forEach((tick, i) => (tick.textContent = percentText((i / 2) ** 2 * most, most < 0.04 ? 2 : 1)));
    paintCursor();
  }

  function list() {
    if (!sides) return;
    const { painted, grid: patchGrid, tokens, chosen, chosenGrid, chosenTokens, weights } = sides;
    const words = WORDS[painted];
    const name = patchName(chosenGrid, chosen, chosenTokens);
    status.replaceChildren(`${words.chosen}: `, element("strong", {}, name));
    listTitle.textContent = words.listed;
    grid.setAttribute("aria-label", `Patches of the image, ${patchGrid.rows} rows of ${patchGrid.columns}. The arrow keys choose one.`);
    if (!weights) return;
    const top = topWeights(weights, LISTED_PATCHES);
    rows.replaceChildren(
      ...top.map(({ index, weight }) => {
        const bar = element("div", { class: "bar" });
        bar.style.width = `${weight * 100}%`;
        const place = patchOfToken(patchGrid, index);
        const button = element("button", { type: "button", class: "plain", onclick: () => store.set(painted === "keys" ? { key: index } : { query: index }) }, place ? `row ${place.row}, column ${place.column}` : token(tokens[index] ?? ""));
        return element(
          "tr",
          { "data-token": index, "data-weight": weight, onpointerenter: () => hover(index), onpointerleave: () => hover(null) },
          element("th", { scope: "row" }, button),
          element("td", {}, percentText(weight)),
          element("td", { class: "bars", "aria-hidden": "true" }, bar),
        );
      }),
    );
    const { sum } = patchShares(weights, patchGrid);
    const count = patchGrid.rows * patchGrid.columns;
    const outside = weights.reduce((a, b) => a + b, 0) - sum;
    if (painted === "queries") rest.textContent = `On average, a patch takes ${percentText(sum / count)} from it.`;
    else rest.textContent = tokens.length > count ? `All patches together get ${percentText(sum)}, other tokens ${percentText(outside)}.` : "";
    const [strongest] = top;
    const most = strongest ? ` ${words.most} ${patchName(patchGrid, strongest.index, tokens)}, ${percentText(strongest.weight)}.` : "";
    heat.setAttribute("aria-label", `Weights of the ${words.chosen.toLowerCase()}, ${name}, over the patches.${most}`);
  }

  /** Tokens to choose that are no patches: the class token, registers, words. */
  function listOtherTokens() {
    if (!sides) return;
    const { chosenTokens, chosenGrid, painted } = sides;
    const others = chosenTokens.map((text, index) => ({ text, index })).filter(({ index }) => !chosenGrid || !patchOfToken(chosenGrid, index));
    const go = (/** @type {number} */ index) => sides && store.set(otherChoice(sides, index));
    if (others.length <= TOKEN_BUTTONS) {
      const buttons = others.map(({ text, index }) => element("button", { type: "button", "data-chosen": index, onclick: () => go(index) }, token(text)));
      otherTokenBox.replaceChildren(...(buttons.length ? [element("span", {}, chosenGrid ? "Or choose a token that is no patch: " : `${WORDS[painted].chosen}: `), ...buttons] : []));
    } else {
      const select = element("select", { onchange: () => select.value && go(Number(select.value)) }, element("option", { value: "" }, "choose"), ...others.map(({ text, index }) => element("option", { value: index }, `${index} ${text.slice(0, 60)}`)));
      otherTokenBox.replaceChildren(field(chosenGrid ? "Or choose a token that is no patch" : WORDS[painted].chosen, select));
    }
  }

  /** Which of the other tokens is chosen. */
  function markOtherToken() {
    for (const button of otherTokenBox.querySelectorAll("button")) button.setAttribute("aria-pressed", String(Number(button.dataset.chosen) === sides?.chosen));
    const select = otherTokenBox.querySelector("select");
    const options = [...(select?.options ?? [])];
    if (select) select.selectedIndex = Math.max(0, options.findIndex(({ value }) => value === String(sides?.chosen)));
  }

  function showMissing() {
    const { attention, head, query } = store.state;
    const reasons = [];
    const isCarried = data.head(attention, head) !== null;
    const candidates = data.facts.attentions.flatMap(({ heads, query_patches: queries, key_patches: keys }, at) => (queries || keys ? heads.flatMap(({ payload }, place) => (payload ? [{ attention: at, head: place }] : [])) : []));
    const go = candidates.find((each) => each.attention === attention) ?? candidates[0];
    if (!sides) reasons.push("No token of this attention is known to be a patch of the image, so nothing is painted. If some are, to_html(image=..., patches=...) says which.");
    else if (!isCarried) reasons.push("This head is in the page as a picture only: the page's footer says how to get its weights.");
    else if (!sides.weights) reasons.push(`The ${sides.painted === "keys" ? `row of query ${query} is` : "rows of all queries are"} not in this page; the page's footer says how to get ${sides.painted === "keys" ? "it" : "them"}.`);
    const button = go && reasons.length > 0 && (go.attention !== attention || go.head !== head);
    notice.replaceChildren(
      ...reasons.map((reason) => element("p", {}, reason)),
      ...(button ? [element("button", { type: "button", onclick: () => store.set({ ...go, query: Math.min(query, data.attention(go.attention).queries - 1), key: null, viewport: null }) }, "Go to a head that looks at the image")] : []),
    );
    body.hidden = !sides || !isCarried;
    body.classList.toggle("absent", !sides?.weights);
  }

  return (/** @type {State} */ state, /** @type {State | null} */ before) => {
    const former = sides;
    const isOther = (/** @type {(keyof State)[]} */ ...names) => before === null || names.some((name) => state[name] !== before[name]);
    if (!isOther("attention", "head", "query", "key")) return;
    sides = sidesOf(data, state);
    if (!isOther("attention", "head") && former?.chosen === sides?.chosen) {
      paintCursor();
      return;
    }
    hovered = null;
    showMissing();
    if (isOther("attention")) listOtherTokens();
    markOtherToken();
    list();
    paint();
  };
}

/** @param {string} text */
function sentenceCase(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
