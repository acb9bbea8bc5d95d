/** All heads at once: a small picture of each. */

import { isDark } from "../core/colour.js";
import { element } from "../core/dom.js";
import { field } from "../core/controls.js";
import { headCard } from "./card.js";
import { gridStep, HEAD_TYPES, HEAD_ORDERS, headDescription, groupHeads, orderValue, sortHeads } from "./order.js";
import { paintThumbnail, aspectRatio, paintWhenVisible } from "./thumbnail.js";

/** @typedef {import("./order.js").HeadPlace} HeadPlace */
/** @typedef {import("./order.js").Order} Order */
/** @typedef {import("../core/store.js").State} State */

/** On paper so many heads stand side by side. */
const PRINT_COLUMNS = 16;

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
  /** @type {HeadPlace[]} */
  let shown = [];
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  let columns = 1;
  let printing = false;
  /** @type {Map<HTMLImageElement, HeadPlace>} */
  const places = new Map();
  const watchOver = paintWhenVisible((image) => paintOne(image));

  const sorts = element("select", { class: "order", onchange: () => arrange({ order: /** @type {Order} */ (sorts.value) }) }, ...Object.entries(HEAD_ORDERS).map(([value, text]) => element("option", { value }, text)));
  const kinds = element("select", { class: "kinds", onchange: () => arrange({ wanted: kinds.value }) });
  const count = element("output", { class: "count" });
  const grid = element("div", { class: "grid", role: "group", "aria-label": "Heads" });
  const legend = element("dl", { class: "legend" });
  root.append(
    element("div", { class: "tools" }, field("Sort by", sorts), field("Show", kinds), count),
    element("div", { class: "wide" }, grid),
    element("h2", {}, "The kinds"),
    element("p", { class: "quiet" }, "A head is of a kind when at least half of its attention goes where the kind says. Entropy, in nats: 0 looks at one token; the more, the more evenly it looks at many."),
    legend,
    card.dialog,
  );

  /** @param {{order?: Order, wanted?: string}} change */
  function arrange(change = {}) {
    order = change.order ?? order;
    wanted = change.wanted ?? wanted;
    const all = groupHeads(data, store.state.attention);
    const of = (/** @type {string} */ kind) => all.filter(({ facts }) => facts.head_type === kind).length;
    const present = Object.keys(HEAD_TYPES).filter((kind) => of(kind) > 0);
    if (!present.includes(wanted)) wanted = "";
    kinds.replaceChildren(element("option", { value: "" }, `all ${all.length} heads`), ...present.map((kind) => element("option", { value: kind }, `${kind} (${of(kind)})`)));
    kinds.value = wanted;
    legend.replaceChildren(...Object.entries(HEAD_TYPES).flatMap(([kind, says]) => [element("dt", {}, kind), element("dd", {}, `${says}; ${of(kind) || "no"} ${of(kind) === 1 ? "head" : "heads"} here`)]));
    shown = sortHeads(wanted ? all.filter(({ facts }) => facts.head_type === wanted) : all, order);
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
    grid.classList.toggle("broad", columns > PRINT_COLUMNS);
    /** @type {HTMLElement[]} */
    const parts = [];
    shown.forEach((place, i) => {
      const first = byLayer && shown[i - 1]?.attention !== place.attention;
      if (first) parts.push(element("div", { class: "layer" }, element("span", {}, "layer "), String(place.layer)));
      parts.push(/** @type {HTMLElement} */ (buttons[i]));
    });
    grid.replaceChildren(...parts);
    watchOver(places.keys());
    choose();
  }

  /** @param {HeadPlace} place */
  function pictured(place) {
    const { attention, head, layer, facts } = place;
    const image = element("img", { class: "picture", alt: "" });
    image.style.aspectRatio = String(aspectRatio(data.attention(attention)));
    places.set(image, place);
    const short = facts.head_type.replace(/ token$/, "");
    const byLayer = order === "layer" && wanted === "";
    const caption = byLayer
      ? [element("span", {}, `head ${facts.number}`), element("span", { class: "kind" }, short)]
      : [element("span", {}, `layer ${layer} head ${facts.number}`), element("span", { class: "kind" }, facts.head_type), element("span", { class: "value" }, orderValue(facts, order))];
    return element(
      "button",
      { type: "button", class: "head", tabindex: -1, "aria-label": headDescription(place), "aria-haspopup": "dialog", "data-attention": attention, "data-head": head, onclick: () => card.open(place), onfocus: (/** @type {FocusEvent} */ event) => rove(/** @type {HTMLButtonElement} */ (event.currentTarget)) },
      image,
      ...caption,
    );
  }

  /** @param {HTMLImageElement} image */
  function paintOne(image) {
    const place = places.get(image);
    if (place) paintThumbnail(image, data, place.attention, place.head, isDark() && !printing);
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
