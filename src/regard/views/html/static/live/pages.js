/** The views of one text, or of two side by side: mounted anew for each answer, with the reader's state kept. */

import { carryState } from "./carry.js";
import { element, visible } from "../core/dom.js";
import { Data } from "../core/data.js";
import { validState } from "../core/state.js";
import { mountPage } from "../page.js";

/** @typedef {import("./engine.js").Answer} Answer */
/** @typedef {import("./engine.js").Live} Live */
/** @typedef {import("../core/store.js").State} State */
/** @typedef {import("../page.js").View} View */

/**
 * A page that is mounted, and its data.
 * @typedef {object} Shown
 * @property {HTMLElement} root
 * @property {Data} data
 * @property {import("../page.js").MountedPage} page
 */

/**
 * @param {Live} live
 * @param {readonly View[]} views
 */
export function livePages(live, views) {
  const root = element("div", { class: "live-pages" });
  /** @type {Shown[]} */
  let shown = [];
  /** An answer that waits for an open dialog. @type {Answer | null} */
  let waiting = null;
  /** Choices within views, kept from answer to answer. @type {Record<string, string>} */
  const choices = {};

  // The event does not bubble.
  root.addEventListener("close", () => waiting && show(waiting), { capture: true });

  /** @param {Answer} answer */
  function show(answer) {
    waiting = root.querySelector("dialog[open]") ? answer : null;
    if (waiting) return;
    const back = keepPlace(root);
    const old = shown;
    for (const { page } of old) page.unmount();
    const roots = answer.texts.map((_, i) => element("div", { class: `live-page ${i === 0 ? "first" : "second"}` }));
    root.classList.toggle("pair", roots.length > 1);
    root.replaceChildren(...roots);
    shown = answer.texts.map(({ facts, numbers }, i) => {
      const data = new Data(facts, numbers);
      const before = old[i];
      const first = old[0]?.page.store.state ?? null;
      const state = before ? carryState(before.page.store.state, before.data, data) : i === 0 ? null : first && { ...first, edits: {}, viewport: null, key: null };
      const own = /** @type {HTMLElement} */ (roots[i]);
      const place = i === 0 ? "first" : "second";
      const page = mountPage(own, data, { live, state, views: i === 0 ? views : views.filter((view) => !view.single), place, choices });
      if (roots.length > 1) own.querySelector(".panels")?.prepend(element("p", { class: "which-text" }, element("bdi", {}, visible(answer.texts[i]?.facts.title ?? ""))));
      return { root: own, data, page };
    });
    keepInStep();
    back();
  }

  /** What is shown of one text is shown of the other, too. */
  function keepInStep() {
    const [first, second] = shown;
    if (!first || !second) return;
    const isSingle = (/** @type {State} */ { view }) => views.some(({ name, single }) => name === view && single);
    const follow = (/** @type {Shown} */ { page, data }, /** @type {State} */ { view, attention, head, extraHeads, threshold }) => {
      const other = page.store.state;
      page.store.set({ ...validState({ ...other, attention, head, extraHeads, threshold, view: page.views.includes(view) ? view : other.view }, data, [...page.views]) });
    };
    const place = (/** @type {State} */ state) => {
      second.root.hidden = isSingle(state);
      root.classList.toggle("pair", !second.root.hidden);
    };
    first.page.store.subscribe((state) => {
      place(state);
      follow(second, state);
    });
    second.page.store.subscribe((state) => !second.root.hidden && follow(first, state));
    place(first.page.store.state);
    follow(second, first.page.store.state);
  }

  return {
    root,
    show,
    /** The page of the first text. */
    get first() {
      return shown[0] ?? null;
    },
  };
}

/**
 * Remembers what has the focus and how far the window is scrolled; the function brings both back.
 * @param {HTMLElement} root
 */
function keepPlace(root) {
  const path = pathTo(root, document.activeElement);
  const top = scrollY;
  const height = root.offsetHeight;
  root.style.minHeight = `${height}px`; // an empty page would scroll to its beginning
  return () => {
    const target = path && elementAt(root, path);
    if (target) target.focus({ preventScroll: true });
    if (scrollY !== top) scrollTo({ top, behavior: "instant" });
    // Views that draw when they are laid out have their height in the next frame.
    requestAnimationFrame(() => requestAnimationFrame(() => (root.style.minHeight = "")));
  };
}

/**
 * The way to an element: its tag, and the place among its parent's children, of each element down to it.
 * @param {HTMLElement} root
 * @param {Element | null} node
 */
function pathTo(root, node) {
  /** @type {{tag: string, place: number}[]} */
  const path = [];
  if (!node || node === root || !root.contains(node)) return null;
  for (let at = node; at !== root && at.parentElement; at = at.parentElement) path.unshift({ tag: at.tagName, place: [...at.parentElement.children].indexOf(at) });
  return path;
}

/**
 * @param {HTMLElement} root
 * @param {{tag: string, place: number}[]} path
 */
function elementAt(root, path) {
  /** @type {Element | undefined} */
  let node = root;
  for (const { tag, place } of path) {
    node = node?.children[place];
    if (node?.tagName !== tag) return null;
  }
  return node instanceof HTMLElement ? node : null;
}
