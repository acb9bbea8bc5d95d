/** A page of some data: the tabs, the controls, and one view at a time. */

import { arithmetic } from "./arithmetic/arithmetic.js";
import { context } from "./context/context.js";
import { controls } from "./core/controls.js";
import { element, visible } from "./core/dom.js";
import { effect } from "./effect/effect.js";
import { heads } from "./heads/heads.js";
import { map } from "./map/map.js";
import { patches } from "./patches/patches.js";
import { sentence } from "./sentence/sentence.js";
import { validState, initialState } from "./core/state.js";
import { Store } from "./core/store.js";
import { whatif } from "./whatif/whatif.js";

/** @typedef {import("./core/data.js").Data} Data */
/** @typedef {import("./core/store.js").State} State */
/** @typedef {import("./live/engine.js").Live} Live */

/**
 * A view. It is mounted when it is first opened, and updated at every change while it is open.
 * @typedef {object} View
 * @property {string} name in the link
 * @property {string} title
 * @property {string} help a line for new readers
 * @property {(data: Data, live: Live | null) => boolean} fits whether this page has the data for it, or the model
 * @property {(root: HTMLElement, page: Page) => (state: State, before: State | null) => void} mount fills the root; answers the function that draws
 * @property {boolean} [single] whether it stands alone where the page shows two texts: it shows both, or can change the first only
 */

/**
 * The input of every view.
 * @typedef {object} Page
 * @property {Data} data
 * @property {Store} store
 * @property {Live | null} live the model that answers; null: the page shows what was recorded
 * @property {string} suffix of the ids of elements, which two pages in one document must not share
 * @property {Record<string, string>} choices within views, which no link has: a page that is mounted again begins with them
 * @property {AbortSignal} signal aborted when the page is unmounted: listeners of the window end with it
 */

/**
 * @typedef {object} MountOptions
 * @property {Live | null} [live]
 * @property {State | null} [state] that the reader had on another page; null: the one of the link in the address
 * @property {readonly View[]} [views]
 * @property {Record<string, string>} [choices] that the reader made on another page; those made here are written into it
 * @property {"alone" | "first" | "second"} [place] of a page whose texts stand above it: the first has no header, the second its views only, no address either
 */

/**
 * @typedef {object} MountedPage
 * @property {Store} store
 * @property {readonly string[]} views the names of those that fit
 * @property {() => void} unmount ends its listeners; its elements are the caller's
 */

/** Every view of a page of recorded attention, in the order of the tabs. @type {readonly View[]} */
export const VIEWS = [sentence, heads, effect, map, arithmetic, whatif, context, patches];

/**
 * Fills an element with a page.
 * @param {HTMLElement} root
 * @param {Data} data
 * @param {MountOptions} [options]
 * @returns {MountedPage}
 */
export function mountPage(root, data, { live = null, state = null, views: offered = VIEWS, place = "alone", choices = {} } = {}) {
  const ending = new AbortController();
  const { signal } = ending;
  const isSecond = place === "second";
  const store = new Store(initialState(data));
  /** @type {Page} */
  const page = { data, store, live, suffix: isSecond ? "-second" : "", choices, signal };
  // A page of effects alone has no attention, which every other view shows.
  const hasAttentions = data.facts.attentions.length > 0;
  const views = offered.filter((view) => view.fits(data, live) && (hasAttentions || view === effect));
  const names = views.map((view) => view.name);
  const sanitize = (/** @type {State} */ each) => validState(each, data, names);

  const panels = views.map((view) => viewPanel(view, page));
  const list = tabList(views, page);
  const show = viewSwitch(views, panels, page);
  const update = (/** @type {State} */ next, /** @type {State | null} */ before) => {
    list.update(next);
    show(next, before);
  };

  if (state) store.moveTo(sanitize(state));
  else if (!isSecond) store.applyLink(location.hash, sanitize);
  root.replaceChildren(
    ...[
      ...(place === "alone" ? pageHeader(data) : []),
      !isSecond && hasAttentions && controls(page),
      !isSecond && list.root,
      ...(place === "alone" ? panels : [element("div", { class: "panels" }, ...panels)]),
      place === "alone" && pageFooter(data),
    ].filter((part) => part instanceof Node),
  );
  store.subscribe((next, before) => {
    update(next, before);
    if (!isSecond) updateAddress(store.link);
  });
  if (!isSecond) addEventListener("hashchange", () => store.applyLink(location.hash, sanitize), { signal });
  // Colours that are painted and not styled are painted anew.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => update(store.state, null), { signal });
  update(store.state, null);
  if (state && !isSecond) updateAddress(store.link);
  return { store, views: names, unmount: () => ending.abort() };
}

/**
 * The panel of a view, still empty but for its help.
 * @param {View} view
 * @param {Page} page
 */
function viewPanel({ name, help }, { suffix }) {
  return element(
    "section",
    { role: "tabpanel", id: `view-${name}${suffix}`, class: `view ${name}`, "aria-labelledby": `tab-${name}`, tabindex: -1, hidden: true },
    element("p", { class: "help" }, help),
  );
}

/**
 * The tabs, of which arrows reach the others.
 * @param {readonly View[]} views
 * @param {Page} page
 */
function tabList(views, { store, suffix }) {
  const names = views.map((view) => view.name);
  const tabs = views.map(({ name, title }) =>
    element("button", { role: "tab", id: `tab-${name}${suffix}`, "aria-controls": `view-${name}${suffix}`, onclick: () => store.set({ view: name }) }, title),
  );
  const root = element("div", { role: "tablist", class: "tabs", "aria-label": "Views" }, ...tabs);
  root.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step === undefined) return;
    event.preventDefault();
    const at = names.indexOf(store.state.view) + step;
    const next = Math.abs(step) === 1 ? (at + names.length) % names.length : Math.min(Math.max(at, 0), names.length - 1);
    store.set({ view: String(names[next]) });
    tabs[next]?.focus();
  });

  /** @param {State} state */
  function update(state) {
    tabs.forEach((tab, i) => {
      const isOpen = names[i] === state.view;
      tab.setAttribute("aria-selected", String(isOpen));
      tab.setAttribute("tabindex", isOpen ? "0" : "-1");
    });
  }
  return { root, update };
}

/**
 * Shows the view that is open, which is mounted when it is opened for the first time.
 * @param {readonly View[]} views
 * @param {readonly HTMLElement[]} panels
 * @param {Page} page
 * @returns {(state: State, before: State | null) => void}
 */
function viewSwitch(views, panels, page) {
  /** @type {Map<string, ReturnType<View["mount"]>>} */
  const mounted = new Map();
  return (state, before) => {
    views.forEach((view, i) => {
      const panel = /** @type {HTMLElement} */ (panels[i]);
      panel.hidden = view.name !== state.view;
      if (panel.hidden) return;
      const isNew = !mounted.has(view.name);
      const update = mounted.get(view.name) ?? view.mount(panel, page);
      mounted.set(view.name, update);
      update(state, isNew || before?.view !== state.view ? null : before);
    });
  };
}

/** @param {Data} data */
function pageHeader(data) {
  const { title, model, notes } = data.facts;
  return [
    element("header", {}, element("h1", {}, element("bdi", {}, visible(title))), element("p", {}, "Attention of ", element("bdi", { class: "model" }, visible(model)))),
    notes.length > 0 && element("ul", { class: "notes" }, ...notes.map((note) => element("li", {}, visible(note)))),
  ].filter((part) => part instanceof Node);
}

/** @param {Data} data */
function pageFooter(data) {
  const { omitted, generator } = data.facts;
  return element(
    "footer",
    {},
    omitted.length > 0 && element("h2", {}, "What this page omits"),
    omitted.length > 0 && element("ul", {}, ...omitted.map((line) => element("li", {}, visible(line)))),
    element("p", {}, `Made by ${generator}. Layers, heads and positions count from 0. This page needs no network.`),
  );
}

/**
 * Puts the link into the address. A frame in a notebook has none that may be changed.
 * @param {string} link
 */
function updateAddress(link) {
  try {
    history.replaceState(null, "", link);
  } catch {
    // The page works as well without.
  }
}
