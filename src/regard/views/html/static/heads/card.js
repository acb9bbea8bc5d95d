/** One head enlarged: its map and its statistics. */

import { isDark } from "../core/colour.js";
import { element, percentText } from "../core/dom.js";
import { distanceText, HEAD_TYPES } from "./order.js";
import { aspectRatio } from "./thumbnail.js";
import { openMap } from "../map/open.js";
import { WeightSource } from "../map/source.js";
import { pairsTable } from "../map/table.js";
import { shareBar } from "../row/bars.js";

/** @typedef {import("./order.js").HeadPlace} HeadPlace */

/** The most cells of a side of the enlarged map. */
const MAX_CELLS = 160;

/**
 * @param {import("../page.js").Page} page
 */
export function headCard(page) {
  const { data, store } = page;
  const titleId = `head-card-title${page.suffix}`;
  const title = element("h2", { id: titleId });
  const dialog = element("dialog", { class: "head-card", "aria-labelledby": titleId }, title);
  /** @type {(() => void) | null} */
  let repaint = null;
  // A click beside the card closes it.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  // Behind an open card nothing can be clicked, also where the reader went elsewhere by the address.
  store.subscribe((state, before) => {
    if (state.view !== "heads" || state.attention !== before.attention) dialog.close();
  });

  /** @param {HeadPlace} place */
  function open(place) {
    const { attention, head, layer, facts } = place;
    const shape = aspectRatio(data.attention(attention));
    const picture = element("canvas", { class: "picture", role: "img", "aria-label": `Map of layer ${layer}, head ${facts.number}: queries from top to bottom, keys from left to right` });
    picture.style.aspectRatio = String(shape);
    repaint = () => paintLargest(picture, place);
    const lookButton = element("button", { type: "button", class: "look", onclick: () => choose(place) }, "Look at this head");
    const close = element("button", { type: "button", onclick: () => dialog.close() }, "Close");
    title.textContent = `Layer ${layer}, head ${facts.number}: ${facts.head_type}`;
    dialog.replaceChildren(
      title,
      element("p", { class: "actions" }, lookButton, close),
      element("p", { class: "quiet" }, `This head ${typeDescription(facts.head_type)}.`),
      element(
        "div",
        { class: "parts" },
        element("figure", {}, picture, element("figcaption", {}, `Queries down, keys across. More in the map.`)),
        element("div", {}, numbers(place), scores(facts.head_type_scores), pairsTable(page, attention, head)),
      ),
    );
    dialog.showModal();
    repaint();
    lookButton.focus();
  }

  /**
   * The exact weights, where the page has them, and the small picture until they are there.
   * @param {HTMLCanvasElement} canvas
   * @param {HeadPlace} place
   */
  function paintLargest(canvas, { attention, head }) {
    const source = new WeightSource(data, attention, head);
    const { queries, keys } = source.map;
    const paintView = () => {
      const view = source.paint([0, queries, 0, keys], { wide: MAX_CELLS, tall: MAX_CELLS }, isDark());
      canvas.width = source.raster.width;
      canvas.height = source.raster.height;
      if (canvas.width * canvas.height) canvas.getContext("2d")?.drawImage(source.raster, 0, 0);
      if (view.busy && canvas.isConnected) requestAnimationFrame(paintView);
    };
    paintView();
  }

  /** @param {HeadPlace} place */
  function numbers({ facts, attention }) {
    const cross = data.attention(attention).kind === "cross";
    const rows = [
      ["Entropy, on average over the queries", `${facts.entropy.toFixed(2)} nats`],
      ["Share on the first token", facts.first_token_share === null ? "not known" : percentText(facts.first_token_share)],
      ["How far back it looks, on average", distanceText(facts.distance) ?? (cross ? "none between two texts" : "not known")],
    ];
    return element("table", { class: "facts" }, element("tbody", {}, ...rows.map(([name = "", value = ""]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value)))));
  }

  /** @param {Record<string, number | null>} all */
  function scores(all) {
    const rows = Object.entries(all).map(([type, score]) => {
      const isKnown = score !== null && Number.isFinite(score);
      return element("tr", {}, element("th", { scope: "row" }, type), element("td", { "data-type": type }, isKnown ? percentText(score) : "not known"), element("td", {}, isKnown ? shareBar(score) : ""));
    });
    return element("table", { class: "scores" }, element("caption", {}, "The score for each head type"), element("tbody", {}, ...rows));
  }

  /** @param {HeadPlace} place */
  function choose({ attention, head }) {
    dialog.close();
    openMap(page, attention, head);
  }

  return { dialog, open, repaint: () => dialog.open && repaint?.() };
}

/** @param {string} type */
function typeDescription(type) {
  const description = HEAD_TYPES[/** @type {keyof typeof HEAD_TYPES} */ (type)];
  return type === "mixed" || !description ? "has no pattern of those in the legend" : description;
}
