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

/** The number of heads side by side on paper. */
const PRINT_COLUMNS = 16;

/** @type {import("../page.js").View} */
export const heads = {
  name: "heads",
  title: "Heads",
  help: "The attention of every head as a small picture: queries from top to bottom, keys from left to right; what stands out gets much attention. A click enlarges it.",
  fits: () => true,
  mount: mountHeads,
};

/**
 * @param {HTMLElement} root
 * @param {import("../page.js").Page} page
 */
function mountHeads(root, page) {
  const { data, store } = page;
  const card = headCard(page);
  /** @type {Order} */
  let order = page.choices.headOrder && page.choices.headOrder in HEAD_ORDERS ? /** @type {Order} */ (page.choices.headOrder) : "layer";
  let headType = page.choices.headType ?? "";
  /** @type {HeadPlace[]} */
  let shownPlaces = [];
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  let columns = 1;
  let printing = false;
  /** @type {Map<HTMLImageElement, HeadPlace>} */
  const imagePlaces = new Map();
  const observe = paintWhenVisible((image) => paintOne(image));

  const orderSelect = element("select", { class: "order", onchange: () => arrange({ order: /** @type {Order} */ (orderSelect.value) }) }, ...Object.entries(HEAD_ORDERS).map(([value, text]) => element("option", { value }, text)));
  orderSelect.value = order;
  const typeSelect = element("select", { class: "kinds", onchange: () => arrange({ headType: typeSelect.value }) });
  const count = element("output", { class: "count" });
  const grid = element("div", { class: "grid", role: "group", "aria-label": "Heads" });
  const legend = element("dl", { class: "legend" });
  root.append(
    element("div", { class: "tools" }, field("Sort by", orderSelect), field("Show", typeSelect), count),
    element("div", { class: "wide" }, grid),
    element("h2", {}, "The head types"),
    element("p", { class: "quiet" }, "A head has a type when at least half of its attention goes where the type says. Entropy, in nats: 0 looks at one token; the more, the more evenly it looks at many."),
    legend,
    card.dialog,
  );

  /** @param {{order?: Order, headType?: string}} change */
  function arrange(change = {}) {
    order = change.order ?? order;
    headType = change.headType ?? headType;
    Object.assign(page.choices, { headOrder: order, headType });
    const all = groupHeads(data, store.state.attention);
    const of = (/** @type {string} */ type) => all.filter(({ facts }) => facts.head_type === type).length;
    const presentTypes = Object.keys(HEAD_TYPES).filter((type) => of(type) > 0);
    if (!presentTypes.includes(headType)) headType = "";
    typeSelect.replaceChildren(element("option", { value: "" }, `all ${all.length} heads`), ...presentTypes.map((type) => element("option", { value: type }, `${type} (${of(type)})`)));
    typeSelect.value = headType;
    legend.replaceChildren(...Object.entries(HEAD_TYPES).flatMap(([type, description]) => [element("dt", {}, type), element("dd", {}, `${description}; ${of(type) || "no"} ${of(type) === 1 ? "head" : "heads"} here`)]));
    shownPlaces = sortHeads(headType ? all.filter(({ facts }) => facts.head_type === headType) : all, order);
    count.textContent = headType ? `${shownPlaces.length} of ${all.length} heads` : "";
    fill();
  }

  function fill() {
    imagePlaces.clear();
    buttons = shownPlaces.map((place) => headButton(place));
    const byLayer = order === "layer" && headType === "";
    grid.classList.toggle("flat", !byLayer);
    columns = byLayer ? Math.max(...data.facts.attentions.map(({ heads: all }, i) => (shownPlaces.some((place) => place.attention === i) ? all.length : 1))) : 0;
    grid.style.setProperty("--columns", String(columns));
    grid.classList.toggle("broad", columns > PRINT_COLUMNS);
    /** @type {HTMLElement[]} */
    const parts = [];
    shownPlaces.forEach((place, i) => {
      const isFirst = byLayer && shownPlaces[i - 1]?.attention !== place.attention;
      if (isFirst) parts.push(element("div", { class: "layer" }, element("span", {}, "layer "), String(place.layer)));
      parts.push(/** @type {HTMLElement} */ (buttons[i]));
    });
    grid.replaceChildren(...parts);
    observe(imagePlaces.keys());
    choose();
  }

  /** @param {HeadPlace} place */
  function headButton(place) {
    const { attention, head, layer, facts } = place;
    const image = element("img", { class: "picture", alt: "" });
    image.style.aspectRatio = String(aspectRatio(data.attention(attention)));
    imagePlaces.set(image, place);
    const shortType = facts.head_type.replace(/ token$/, "");
    const byLayer = order === "layer" && headType === "";
    const caption = byLayer
      ? [element("span", {}, `head ${facts.number}`), element("span", { class: "kind" }, shortType)]
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
    const place = imagePlaces.get(image);
    if (place) paintThumbnail(image, data, place.attention, place.head, isDark() && !printing);
  }

  /** Marks the head that the other views show. */
  function choose() {
    const { attention, head } = store.state;
    buttons.forEach((button, i) => {
      const isCurrent = shownPlaces[i]?.attention === attention && shownPlaces[i]?.head === head;
      if (isCurrent) button.setAttribute("aria-current", "true");
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
  const { signal } = page;
  const printAll = () => {
    printing = true;
    for (const image of imagePlaces.keys()) paintOne(image);
  };
  addEventListener("beforeprint", printAll, { signal });

  /** Paints those that are near, again. */
  function repaint() {
    observe(imagePlaces.keys());
    card.repaint();
  }
  const printed = () => {
    printing = false;
    repaint();
  };
  addEventListener("afterprint", printed, { signal });

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
      if (group(state) !== data.attention(shownPlaces[0]?.attention ?? 0).group) arrange();
      else {
        repaint();
        choose();
      }
    }
  };
}
