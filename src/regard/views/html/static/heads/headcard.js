/** One head enlarged: its picture, and everything that is known of it. */

import { isDark } from "../core/colour.js";
import { make, percent } from "../core/dom.js";
import { distanceText, HEAD_KINDS } from "./headorder.js";
import { pictureShape } from "./headpicture.js";
import { Sight } from "../map/mapsight.js";
import { pairsTable } from "../map/maptable.js";
import { shareBar } from "../row/rowbars.js";

/** @typedef {import("./headorder.js").Place} Place */

/** The enlarged picture has at most so many squares on a side. */
const SHARPEST = 160;

/**
 * @param {import("../main.js").Page} page
 */
export function headCard(page) {
  const { data, store } = page;
  const title = make("h2", { id: "head-card-title" });
  const dialog = make("dialog", { class: "head-card", "aria-labelledby": "head-card-title" }, title);
  /** @type {(() => void) | null} */
  let repaint = null;
  // A click beside the card closes it.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  // Behind an open card nothing can be clicked, also where the reader went elsewhere by the address.
  store.listen((state, before) => {
    if (state.view !== "heads" || state.attention !== before.attention) dialog.close();
  });

  /** @param {Place} place */
  function open(place) {
    const { attention, head, layer, facts } = place;
    const shape = pictureShape(data.attention(attention));
    const picture = make("canvas", { class: "picture", role: "img", "aria-label": `Map of layer ${layer}, head ${facts.number}: queries from top to bottom, keys from left to right` });
    picture.style.aspectRatio = String(shape);
    repaint = () => sharpest(picture, place);
    const look = make("button", { type: "button", class: "look", onclick: () => choose(place) }, "Look at this head");
    const close = make("button", { type: "button", onclick: () => dialog.close() }, "Close");
    title.textContent = `Layer ${layer}, head ${facts.number}: ${facts.kind}`;
    dialog.replaceChildren(
      title,
      make("p", { class: "actions" }, look, close),
      make("p", { class: "quiet" }, `This head ${kindSays(facts.kind)}.`),
      make(
        "div",
        { class: "parts" },
        make("figure", {}, picture, make("figcaption", {}, `Queries down, keys across. More in the map.`)),
        make("div", {}, numbers(place), scores(facts.scores), pairsTable(page, attention, head)),
      ),
    );
    dialog.showModal();
    repaint();
    look.focus();
  }

  /**
   * The exact weights, where the page has them, and the small picture until they are there.
   * @param {HTMLCanvasElement} canvas
   * @param {Place} place
   */
  function sharpest(canvas, { attention, head }) {
    const sight = new Sight(data, attention, head);
    const { queries, keys } = sight.map;
    const look = () => {
      const seen = sight.see([0, queries, 0, keys], { wide: SHARPEST, tall: SHARPEST }, isDark());
      canvas.width = sight.raster.width;
      canvas.height = sight.raster.height;
      if (canvas.width * canvas.height) canvas.getContext("2d")?.drawImage(sight.raster, 0, 0);
      if (seen.busy && canvas.isConnected) requestAnimationFrame(look);
    };
    look();
  }

  /** @param {Place} place */
  function numbers({ facts, attention }) {
    const cross = data.attention(attention).kind === "cross";
    const rows = [
      ["Entropy, on average over the queries", `${facts.entropy.toFixed(2)} nats`],
      ["Share on the first token", facts.sink === null ? "not known" : percent(facts.sink)],
      ["How far back it looks, on average", distanceText(facts.distance) ?? (cross ? "none between two texts" : "not known")],
    ];
    return make("table", { class: "facts" }, make("tbody", {}, ...rows.map(([name = "", value = ""]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)))));
  }

  /** @param {Record<string, number | null>} all */
  function scores(all) {
    const rows = Object.entries(all).map(([kind, score]) => {
      const known = score !== null && Number.isFinite(score);
      return make("tr", {}, make("th", { scope: "row" }, kind), make("td", { "data-kind": kind }, known ? percent(score) : "not known"), make("td", {}, known ? shareBar(score) : ""));
    });
    return make("table", { class: "scores" }, make("caption", {}, "How much of each kind it has"), make("tbody", {}, ...rows));
  }

  /** @param {Place} place */
  function choose({ attention, head }) {
    const { queries } = data.attention(attention);
    const { state } = store;
    dialog.close();
    const kept = attention === state.attention ? {} : { query: Math.min(state.query, queries - 1), key: null, area: null };
    store.set({ attention, head, ...kept, view: "map" });
    document.getElementById("view-map")?.focus();
  }

  return { dialog, open, repaint: () => dialog.open && repaint?.() };
}

/** @param {string} kind */
function kindSays(kind) {
  const says = HEAD_KINDS[/** @type {keyof typeof HEAD_KINDS} */ (kind)];
  return kind === "mixed" || !says ? "has no pattern of those in the legend" : says;
}
