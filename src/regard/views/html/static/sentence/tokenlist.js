/** A list of tokens to point at, in a column or in a line. Only those in sight, and a few around them, are elements. */

import { element, percentText, token } from "../core/dom.js";

/**
 * @typedef {object} ListOptions
 * @property {string} name for ids: no other list of the page has it
 * @property {string} label for screen readers
 * @property {boolean} upright a column; else a line
 * @property {(index: number | null) => void} point a token is pointed at, by mouse or keyboard; null: none any more
 * @property {(index: number) => void} choose
 * @property {() => void} moved other tokens are in sight now
 */

/**
 * How a token looks at the moment.
 * @typedef {object} TokenLook
 * @property {string} text for screen readers
 * @property {number | null} share that is written beside it
 * @property {string} mark "focus", "chosen", "absent" or ""
 */

/** The number of tokens of a line that are elements: their widths differ, so they are measured. */
const MAX_LINE_TOKENS = 400;

/** The number of elements above and below the tokens in sight of a column. */
const SPARE_TOKENS = 6;

/** So that every token has an id of its own. */
let numLists = 0;

export class TokenList {
  /** @type {string[]} */
  #texts = [];
  /** @type {Map<number, HTMLElement>} */
  #items = new Map();
  /** @type {number[]} where the tokens of a line begin; one more than there are */
  #edges = [];
  /** The first token of a line that is an element. */
  #from = 0;
  #active = 0;
  /** What a token looks like. @type {(index: number) => TokenLook} */
  #look = () => ({ text: "", share: null, mark: "" });

  /** @param {ListOptions} options */
  constructor(options) {
    this.options = options;
    this.id = `${options.name}-${numLists++}`;
    const { name, label, upright, point } = options;
    this.inner = element("div", { class: "inner", role: "presentation" });
    this.box = element(
      "div",
      {
        class: `tokenlist ${upright ? "upright" : "level"} ${name}`,
        role: "listbox",
        tabindex: 0,
        "aria-label": label,
        "aria-orientation": upright ? "vertical" : "horizontal",
        onscroll: () => this.#scrolled(),
        onpointerover: (/** @type {PointerEvent} */ event) => event.pointerType === "mouse" && point(this.#indexUnder(event)),
        onpointerleave: (/** @type {PointerEvent} */ event) => event.pointerType === "mouse" && point(this.#restingIndex()),
        onfocus: () => this.box.matches(":focus-visible") && this.#activate(this.#active),
        onblur: () => point(null),
        onclick: (/** @type {MouseEvent} */ event) => this.#clicked(this.#indexUnder(event), event),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
      },
      this.inner,
    );
    this.unit = 1.65 * Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
  }

  get count() {
    return this.#texts.length;
  }

  /**
   * Other tokens.
   * @param {string[]} texts
   */
  fill(texts) {
    this.#texts = texts;
    this.#items.clear();
    this.inner.replaceChildren();
    this.#from = 0;
    this.#active = 0;
    if (this.options.upright) this.inner.style.height = `${texts.length * this.unit}px`;
    this.box.scrollTo(0, 0);
    this.#fit();
  }

  /**
   * Other looks of the same tokens.
   * @param {(index: number) => TokenLook} look
   */
  paint(look) {
    this.#look = look;
    this.#fit();
    for (const [index, item] of this.#items) this.#update(index, item);
  }

  /** The middle of a token from the box's left or upper edge, in pixels. @param {number} index */
  centre(index) {
    if (this.options.upright) return (index + 0.5) * this.unit - this.box.scrollTop;
    const place = index - this.#from;
    const [left = place < 0 ? -1e4 : 1e5, right = left] = place < 0 ? [] : [this.#edges[place], this.#edges[place + 1]];
    return (left + right) / 2 - this.box.scrollLeft;
  }

  /** The tokens in sight. @returns {[number, number]} the first, and the one behind the last */
  inSight() {
    const { scrollTop, clientHeight, scrollLeft, clientWidth } = this.box;
    if (this.options.upright) {
      return [Math.floor(scrollTop / this.unit), Math.min(this.count, Math.ceil((scrollTop + clientHeight) / this.unit))];
    }
    const after = (/** @type {number} */ x) => this.#edges.findIndex((edge) => edge > x);
    const first = Math.max(0, after(scrollLeft) - 1);
    const end = after(scrollLeft + clientWidth);
    return [this.#from + first, end < 0 ? this.#from + this.#edges.length - 1 : this.#from + end];
  }

  /** Brings a token into sight, if it is not. @param {number} index */
  reveal(index) {
    this.#active = index;
    const [from, to] = this.inSight();
    if (index >= from && index < to && (index > from || index === 0) && (index < to - 1 || to === this.count)) return;
    if (this.options.upright) this.box.scrollTop = (index + 0.5) * this.unit - this.box.clientHeight / 2;
    else {
      if (index < this.#from || index >= this.#from + this.#edges.length - 1) this.#window(index - (MAX_LINE_TOKENS >> 1));
      this.box.scrollLeft += this.centre(index) - this.box.clientWidth / 2;
    }
    this.#fit();
    this.options.moved();
  }

  #scrolled() {
    const { box, options } = this;
    if (!options.upright) {
      const direction = box.scrollLeft < 50 ? -1 : box.scrollLeft + box.clientWidth > box.scrollWidth - 50 ? 1 : 0;
      const more = direction < 0 ? this.#from > 0 : this.#from + MAX_LINE_TOKENS < this.count;
      if (direction && more) {
        const [from, to] = this.inSight();
        const middle = (from + to) >> 1;
        const oldCentre = this.centre(middle);
        this.#window(middle - (MAX_LINE_TOKENS >> 1));
        box.scrollLeft += this.centre(middle) - oldCentre;
      }
    }
    this.#fit();
    options.moved();
  }

  /** Makes the elements that belong in sight, and takes the others away. */
  #fit() {
    if (!this.options.upright) {
      if (!this.#items.size) this.#window(0);
      return;
    }
    const [from, to] = this.inSight();
    const [first, last] = [Math.max(0, from - SPARE_TOKENS), Math.min(this.count, to + SPARE_TOKENS)];
    for (const [index, item] of this.#items) {
      if (index >= first && index < last) continue;
      item.remove();
      this.#items.delete(index);
    }
    for (let index = first; index < last; index++) {
      if (this.#items.has(index)) continue;
      const item = this.#item(index);
      item.style.top = `${index * this.unit}px`;
      this.inner.append(item);
    }
  }

  /** The tokens of a line from one on. @param {number} from */
  #window(from) {
    this.#from = Math.max(0, Math.min(from, this.count - MAX_LINE_TOKENS));
    this.#items.clear();
    const items = Array.from({ length: Math.min(MAX_LINE_TOKENS, this.count) }, (_, i) => this.#item(this.#from + i));
    this.inner.replaceChildren(...items);
    this.measure();
  }

  /** Measure the tokens of a line, again after the font or the window has changed. */
  measure() {
    if (this.options.upright) return;
    const items = [...this.#items.values()];
    const last = items.at(-1);
    this.#edges = [...items.map((item) => item.offsetLeft), last ? last.offsetLeft + last.offsetWidth : 0];
  }

  /** @param {number} index */
  #item(index) {
    const text = this.#texts[index] ?? "";
    const item = element(
      "div",
      { class: "item", role: "option", id: `${this.id}-${index}`, "data-index": index, "aria-setsize": this.count, "aria-posinset": index + 1, title: text.slice(0, 2000) },
      element("span", { class: "place" }, String(index)),
      token(text),
      element("span", { class: "share" }),
    );
    this.#items.set(index, item);
    this.#update(index, item);
    return item;
  }

  /**
   * @param {number} index
   * @param {HTMLElement} item
   */
  #update(index, item) {
    const { text, share, mark } = this.#look(index);
    if (item.getAttribute("aria-label") !== text) item.setAttribute("aria-label", text);
    item.setAttribute("aria-selected", String(mark === "focus"));
    item.dataset.mark = mark;
    const shareElement = /** @type {HTMLElement} */ (item.lastChild);
    const shareText = share === null ? "" : percentText(share);
    if (shareElement.textContent !== shareText) shareElement.textContent = shareText;
    if (share === null) delete item.dataset.weight;
    else item.dataset.weight = String(share);
    item.style.setProperty("--share", share === null ? "0%" : percentText(share).replace(" ", ""));
  }

  /** @param {Event} event */
  #indexUnder(event) {
    const item = event.target instanceof Element ? event.target.closest(".item") : null;
    return item instanceof HTMLElement ? Number(item.dataset.index) : null;
  }

  /** What is pointed at when the mouse is not there. */
  #restingIndex() {
    return document.activeElement === this.box && this.box.matches(":focus-visible") ? this.#active : null;
  }

  /**
   * @param {number | null} index
   * @param {Event} [event]
   */
  #clicked(index, event) {
    if (index === null) return;
    this.#active = index;
    this.options.choose(index);
    // A finger points by tapping.
    if (event instanceof PointerEvent && event.pointerType === "touch") this.options.point(index);
  }

  /** Goes to a token by the keyboard. @param {number} index */
  #activate(index) {
    this.reveal(index);
    this.box.setAttribute("aria-activedescendant", `${this.id}-${index}`);
    this.options.point(index);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const page = Math.max(1, this.inSight()[1] - this.inSight()[0] - 2);
    const [next, previous] = this.options.upright ? ["ArrowDown", "ArrowUp"] : ["ArrowRight", "ArrowLeft"];
    const step = { [next]: 1, [previous]: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Enter" || event.key === " ") this.#clicked(this.#active);
    else if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    else this.#activate(Math.min(this.count - 1, Math.max(0, this.#active + step)));
    event.preventDefault();
  }
}
