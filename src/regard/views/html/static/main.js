/** The entry point: reads the data of the page, and shows one view at a time. */

import { arithmetic } from "./arithmetic/arithmetic.js";
import { context } from "./context/context.js";
import { controls } from "./core/controls.js";
import { Data } from "./core/data.js";
import { element, visible } from "./core/dom.js";
import { reportHeight } from "./core/frame.js";
import { effect } from "./effect/effect.js";
import { heads } from "./heads/heads.js";
import { map } from "./map/map.js";
import { patches } from "./patches/patches.js";
import { sentence } from "./sentence/sentence.js";
import { validState, initialState } from "./core/state.js";
import { Store } from "./core/store.js";
import { whatif } from "./whatif/whatif.js";

/**
 * A view. It is mounted when it is first opened, and updated at every change while it is open.
 * @typedef {object} View
 * @property {string} name in the link
 * @property {string} title
 * @property {string} help a line for new readers
 * @property {(data: Data) => boolean} fits whether this page has the data for it
 * @property {(root: HTMLElement, page: Page) => (state: import("./core/store.js").State, before: import("./core/store.js").State | null) => void} mount fills the root; answers the function that draws
 */

/**
 * The input of every view.
 * @typedef {object} Page
 * @property {Data} data
 * @property {Store} store
 */

const VIEWS = [sentence, heads, effect, map, arithmetic, whatif, context, patches];

/** @param {HTMLElement} body */
async function openPage(body) {
  const data = await Data.read(document);
  const store = new Store(initialState(data));
  /** @type {Page} */
  const page = { data, store };
  // A page of effects alone has no attention, which every other view shows.
  const hasAttentions = data.facts.attentions.length > 0;
  const views = VIEWS.filter((view) => view.fits(data) && (hasAttentions || view === effect));
  const names = views.map((view) => view.name);
  /** @type {Map<string, {root: HTMLElement, update: ReturnType<View["mount"]>}>} */
  const mounted = new Map();

  const tabs = views.map((view) =>
    element("button", { role: "tab", id: `tab-${view.name}`, "aria-controls": `view-${view.name}`, onclick: () => store.set({ view: view.name }) }, view.title),
  );
  const panels = views.map((view) =>
    element(
      "section",
      { role: "tabpanel", id: `view-${view.name}`, class: `view ${view.name}`, "aria-labelledby": `tab-${view.name}`, tabindex: -1, hidden: true },
      element("p", { class: "help" }, view.help),
    ),
  );
  const list = element("div", { role: "tablist", class: "tabs", "aria-label": "Views" }, ...tabs);
  list.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step === undefined) return;
    event.preventDefault();
    const at = names.indexOf(store.state.view) + step;
    const next = Math.abs(step) === 1 ? (at + names.length) % names.length : Math.min(Math.max(at, 0), names.length - 1);
    store.set({ view: String(names[next]) });
    tabs[next]?.focus();
  });

  /**
   * @param {import("./core/store.js").State} state
   * @param {import("./core/store.js").State | null} before
   */
  const update = (state, before) => {
    views.forEach((view, i) => {
      const isOpen = view.name === state.view;
      tabs[i]?.setAttribute("aria-selected", String(isOpen));
      tabs[i]?.setAttribute("tabindex", isOpen ? "0" : "-1");
      if (panels[i]) panels[i].hidden = !isOpen;
      if (!isOpen) return;
      const root = /** @type {HTMLElement} */ (panels[i]);
      const mountedView = mounted.get(view.name) ?? { root, update: view.mount(root, page) };
      const isNew = !mounted.has(view.name);
      mounted.set(view.name, mountedView);
      mountedView.update(state, isNew || before?.view !== state.view ? null : before);
    });
  };

  const sanitize = (/** @type {import("./core/store.js").State} */ state) => validState(state, data, names);
  body.replaceChildren(...pageHeader(data), ...(hasAttentions ? [controls(page)] : []), list, ...panels, pageFooter(data));
  store.applyLink(location.hash, sanitize);
  store.subscribe((state, before) => {
    update(state, before);
    updateAddress(store.link);
  });
  addEventListener("hashchange", () => store.applyLink(location.hash, sanitize));
  // Colours that are painted and not styled are painted anew.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => update(store.state, null));
  update(store.state, null);
  document.documentElement.dataset.ready = "yes";
  reportHeight(body);
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

const body = /** @type {HTMLElement} */ (document.getElementById("page"));
openPage(body).catch((error) => {
  body.replaceChildren(element("p", { class: "broken", role: "alert" }, `This page cannot be shown: ${error instanceof Error ? error.message : error}. It needs a browser of 2023 or later, and the whole file.`));
  throw error;
});
