/** All heads at once: a small picture of each. */

import { isDark } from "../core/colour.js";
import { make } from "../core/dom.js";
import { field } from "../core/controls.js";
import { headCard } from "./headcard.js";
import { gridStep, HEAD_KINDS, HEAD_ORDERS, headSentence, headsOf, orderText, sortedHeads } from "./headorder.js";
import { paintHead, pictureShape, whenNear } from "./headpicture.js";

/** @typedef {import("./headorder.js").Place} Place */
/** @typedef {import("./headorder.js").Order} Order */
/** @typedef {import("../core/store.js").State} State */

/** On paper so many heads stand side by side. */
const PRINTED = 16;

/** @type {import("../main.js").View} */
export const heads = {
  name: "heads",
  title: "Heads",
  help: "The attention of every head as a small picture: queries from top to bottom, keys from left to right; what stands out gets much attention. A click enlarges it.",
  fits: () => true,
  mount: mountHeads,
};

/**
 * @param {HTMLElement} root
 * @param {import("../main.js").Page} page
 */
function mountHeads(root, page) {
  const { data, store } = page;
  const card = headCard(page);
  /** @type {Order} */
  let order = "layer";
  let wanted = "";
  /** @type {Place[]} */
  let shown = [];
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  let columns = 1;
  let printing = false;
  /** @type {Map<HTMLImageElement, Place>} */
  const places = new Map();
  const watchOver = whenNear((image) => paintOne(image));

  const sorts = make("select", { class: "order", onchange: () => arrange({ order: /** @type {Order} */ (sorts.value) }) }, ...Object.entries(HEAD_ORDERS).map(([value, text]) => make("option", { value }, text)));
  const kinds = make("select", { class: "kinds", onchange: () => arrange({ wanted: kinds.value }) });
  const count = make("output", { class: "count" });
  const grid = make("div", { class: "grid", role: "group", "aria-label": "Heads" });
  const legend = make("dl", { class: "legend" });
  root.append(
    make("div", { class: "tools" }, field("Sort by", sorts), field("Show", kinds), count),
    make("div", { class: "wide" }, grid),
    make("h2", {}, "The kinds"),
    make("p", { class: "quiet" }, "A head is of a kind when at least half of its attention goes where the kind says. Entropy, in nats: 0 looks at one token; the more, the more evenly it looks at many."),
    legend,
    card.dialog,
  );

  /** @param {{order?: Order, wanted?: string}} change */
  function arrange(change = {}) {
    order = change.order ?? order;
    wanted = change.wanted ?? wanted;
    const all = headsOf(data, store.state.attention);
    const of = (/** @type {string} */ kind) => all.filter(({ facts }) => facts.kind === kind).length;
    const present = Object.keys(HEAD_KINDS).filter((kind) => of(kind) > 0);
    if (!present.includes(wanted)) wanted = "";
    kinds.replaceChildren(make("option", { value: "" }, `all ${all.length} heads`), ...present.map((kind) => make("option", { value: kind }, `${kind} (${of(kind)})`)));
    kinds.value = wanted;
    legend.replaceChildren(...Object.entries(HEAD_KINDS).flatMap(([kind, says]) => [make("dt", {}, kind), make("dd", {}, `${says}; ${of(kind) || "no"} ${of(kind) === 1 ? "head" : "heads"} here`)]));
    shown = sortedHeads(wanted ? all.filter(({ facts }) => facts.kind === wanted) : all, order);
    count.textContent = wanted ? `${shown.length} of ${all.length} heads` : "";
    fill();
  }

  function fill() {
    places.clear();
    buttons = shown.map((place) => pictured(place));
    const byLayer = order === "layer" && wanted === "";
    grid.classList.toggle("flat", !byLayer);
    columns = byLayer ? Math.max(...data.facts.attentions.map(({ heads: all }, i) => (shown.some((place) => place.attention === i) ? all.length : 1))) : 0;
    grid.style.setProperty("--columns", String(columns));
    grid.classList.toggle("broad", columns > PRINTED);
    /** @type {HTMLElement[]} */
    const parts = [];
    shown.forEach((place, i) => {
      const first = byLayer && shown[i - 1]?.attention !== place.attention;
      if (first) parts.push(make("div", { class: "layer" }, make("span", {}, "layer "), String(place.layer)));
      parts.push(/** @type {HTMLElement} */ (buttons[i]));
    });
    grid.replaceChildren(...parts);
    watchOver(places.keys());
    choose();
  }

  /** @param {Place} place */
  function pictured(place) {
    const { attention, head, layer, facts } = place;
    const image = make("img", { class: "picture", alt: "" });
    image.style.aspectRatio = String(pictureShape(data.attention(attention)));
    places.set(image, place);
    const short = facts.kind.replace(/ token$/, "");
    const byLayer = order === "layer" && wanted === "";
    const caption = byLayer
      ? [make("span", {}, `head ${facts.number}`), make("span", { class: "kind" }, short)]
      : [make("span", {}, `layer ${layer} head ${facts.number}`), make("span", { class: "kind" }, facts.kind), make("span", { class: "value" }, orderText(facts, order))];
    return make(
      "button",
      { type: "button", class: "head", tabindex: -1, "aria-label": headSentence(place), "aria-haspopup": "dialog", "data-attention": attention, "data-head": head, onclick: () => card.open(place), onfocus: (/** @type {FocusEvent} */ event) => rove(/** @type {HTMLButtonElement} */ (event.currentTarget)) },
      image,
      ...caption,
    );
  }

  /** @param {HTMLImageElement} image */
  function paintOne(image) {
    const place = places.get(image);
    if (place) paintHead(image, data, place.attention, place.head, isDark() && !printing);
  }

  /** Marks the head that the other views show. */
  function choose() {
    const { attention, head } = store.state;
    buttons.forEach((button, i) => {
      const here = shown[i]?.attention === attention && shown[i]?.head === head;
      if (here) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    });
    rove(buttons.find((button) => button.hasAttribute("aria-current")) ?? buttons[0]);
  }

  /**
   * One picture can be tabbed to; arrows lead to the others.
   * @param {HTMLButtonElement | undefined} to
   */
  function rove(to) {
    for (const button of buttons) if (button.tabIndex === 0 && button !== to) button.tabIndex = -1;
    if (to) to.tabIndex = 0;
  }

  grid.addEventListener("keydown", (event) => {
    const from = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    if (from < 0) return;
    const across = columns || new Set(buttons.map((button) => button.offsetLeft)).size;
    const to = gridStep(event.key, from, buttons.length, across);
    if (to === null) return;
    event.preventDefault();
    buttons[to]?.focus();
  });
  addEventListener("beforeprint", () => {
    printing = true;
    for (const image of places.keys()) paintOne(image);
  });

  /** Paints those that are near, again. */
  function repaint() {
    watchOver(places.keys());
    card.repaint();
  }
  addEventListener("afterprint", () => {
    printing = false;
    repaint();
  });

  /**
   * @param {State} state
   * @param {State | null} before
   */
  return (state, before) => {
    const group = (/** @type {State} */ { attention }) => data.attention(attention).group;
    if (buttons.length === 0 || (before && group(state) !== group(before))) arrange();
    else if (before) choose();
    else {
      // It may have been another group, or light, while another view was open.
      if (group(state) !== data.attention(shown[0]?.attention ?? 0).group) arrange();
      else {
        repaint();
        choose();
      }
    }
  };
}
