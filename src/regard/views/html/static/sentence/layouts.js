/** The two layouts of the tokens: two columns, and one line (two lines for two texts). */

import { element } from "../core/dom.js";
import { lineLayers } from "./linecanvas.js";
import { TokenList } from "./tokenlist.js";

/** @typedef {import("./model.js").SentenceModel} SentenceModel */
/** @typedef {import("./model.js").Focus} Focus */
/** @typedef {import("./tokenlist.js").TokenLook} TokenLook */

/**
 * What a stage tells.
 * @typedef {object} LayoutEvents
 * @property {(token: Focus | null) => void} point
 * @property {(token: Focus) => void} choose
 * @property {() => void} moved
 */

/**
 * @typedef {object} TokenLayout
 * @property {HTMLElement} root
 * @property {(model: SentenceModel) => void} fill other tokens
 * @property {(token: Focus) => void} reveal
 * @property {(model: SentenceModel, focus: Focus, lookOf: (token: Focus) => TokenLook, threshold: number, all: boolean) => DrawnLines} paint `all`: not only the focus has changed
 */

/**
 * What was drawn.
 * @typedef {object} DrawnLines
 * @property {number} lines
 * @property {number} left the number of lines beyond the largest number
 * @property {[number, number]} queries in sight
 * @property {[number, number]} keys in sight
 */

/**
 * A list of tokens that are queries, or keys.
 * @param {LayoutEvents} events
 * @param {"query" | "key"} side
 * @param {string} name
 * @param {boolean} upright
 */
function sideList(events, side, name, upright) {
  return new TokenList({
    name,
    label: side === "query" ? "Queries: the tokens that look" : "Keys: the tokens that are looked at",
    upright,
    point: (index) => events.point(index === null ? null : { side, index }),
    choose: (index) => events.choose({ side, index }),
    moved: events.moved,
  });
}

/** @param {string} text @param {string} more */
function sideHeading(text, more) {
  return element("p", { class: "side", "aria-hidden": "true" }, element("strong", {}, text), ` ${more}`);
}

/**
 * Queries at the left, keys at the right.
 * @param {LayoutEvents} events
 * @returns {TokenLayout}
 */
export function columnLayout(events) {
  let isLinked = false;
  const syncScroll = (/** @type {"queries" | "keys"} */ moved) => {
    const [from, to] = moved === "queries" ? [queries.box, keys.box] : [keys.box, queries.box];
    if (isLinked && together.checked && Math.abs(from.scrollTop - to.scrollTop) > 1) to.scrollTop = from.scrollTop;
    events.moved();
  };
  const queries = sideList({ ...events, moved: () => syncScroll("queries") }, "query", "queries", true);
  const keys = sideList({ ...events, moved: () => syncScroll("keys") }, "key", "keys", true);
  const together = element("input", { type: "checkbox", checked: true, onchange: () => syncScroll("queries") });
  const linkField = element("label", { class: "check" }, together, " Scroll both columns together");
  const layers = lineLayers();
  const columns = element("div", { class: "columns" }, sideHeading("Queries", "look"), element("span"), sideHeading("Keys", "are looked at"), queries.box, layers.root, keys.box);

  return {
    root: element("div", {}, columns, linkField),
    fill(model) {
      isLinked = model.sameText && model.queryOffset === 0;
      queries.fill(model.tokens.queries);
      keys.fill(model.tokens.keys);
      const overflows = [queries.box, keys.box].some((box) => box.scrollHeight > box.clientHeight + 1);
      columns.classList.toggle("long", overflows);
      linkField.hidden = !isLinked || !overflows;
    },
    reveal({ side, index }) {
      const list = side === "query" ? queries : keys;
      const [from, to] = list.inSight();
      // Who goes to a key far away wants to see it beside the query.
      if (side === "key" && (index < from || index >= to)) together.checked = false;
      list.reveal(index);
    },
    paint(model, focus, lookOf, threshold, all) {
      queries.paint((index) => lookOf({ side: "query", index }));
      keys.paint((index) => lookOf({ side: "key", index }));
      const source = { queries: queries.inSight(), keys: keys.inSight() };
      const height = Math.max(queries.box.clientHeight, keys.box.clientHeight);
      layers.root.style.height = `${height}px`;
      const geometry = { shape: /** @type {const} */ ("columns"), width: layers.root.clientWidth, height, query: centreIn(queries), key: centreIn(keys) };
      return { ...source, ...layers.draw(geometry, model, focus, threshold, source, all) };
    },
  };
}

/**
 * One line with arcs above it; for two texts two lines, the keys above.
 * @param {LayoutEvents} events
 * @returns {TokenLayout}
 */
export function lineLayout(events) {
  /** @type {SentenceModel | null} */
  let currentModel = null;
  const roleSelect = element("select", { onchange: () => events.point(null) }, element("option", { value: "query" }, "what it looks at"), element("option", { value: "key" }, "what looks at it"));
  const roleField = element("label", { class: "check" }, "A token shows ", roleSelect);

  /** What a token of a single line is when it is pointed at. @param {number} index @returns {Focus} */
  const pointedAt = (index) => {
    const query = index - (currentModel?.queryOffset ?? 0);
    const isQuery = roleSelect.value === "query" && query >= 0 && query < (currentModel?.tokens.queries.length ?? 0);
    return isQuery ? { side: "query", index: query } : { side: "key", index };
  };
  const keys = sideList(events, "key", "keyline", false);
  const queries = sideList(events, "query", "queryline", false);
  const textList = new TokenList({
    name: "textline",
    label: "Tokens of the text",
    upright: false,
    point: (index) => events.point(index === null ? null : pointedAt(index)),
    choose: (index) => events.choose(pointedAt(index)),
    moved: events.moved,
  });
  const layers = lineLayers();
  const lineBox = element("div", { class: "single" });

  return {
    root: element("div", {}, lineBox, roleField),
    fill(model) {
      currentModel = model;
      roleField.hidden = !model.sameText;
      if (model.sameText) lineBox.replaceChildren(layers.root, textList.box);
      else lineBox.replaceChildren(sideHeading("Keys", "are looked at"), keys.box, layers.root, queries.box, sideHeading("Queries", "look"));
      textList.fill(model.sameText ? model.tokens.keys : []);
      keys.fill(model.sameText ? [] : model.tokens.keys);
      queries.fill(model.sameText ? [] : model.tokens.queries);
    },
    reveal({ side, index }) {
      if (currentModel?.sameText) textList.reveal(side === "query" ? index + currentModel.queryOffset : index);
      else (side === "query" ? queries : keys).reveal(index);
    },
    paint(model, focus, lookOf, threshold, all) {
      const { sameText, queryOffset: first } = model;
      if (all) for (const list of [textList, keys, queries]) list.measure();
      if (sameText) textList.paint((index) => lookOf(roleBesideFocus(focus, index, first)));
      keys.paint((index) => lookOf({ side: "key", index }));
      queries.paint((index) => lookOf({ side: "query", index }));
      const textRange = textList.inSight();
      const queryRange = /** @type {[number, number]} */ (textRange.map((index) => Math.max(0, index - first)));
      const source = sameText ? { queries: queryRange, keys: textRange } : { queries: queries.inSight(), keys: keys.inSight() };
      const query = centreIn(sameText ? textList : queries);
      const key = centreIn(sameText ? textList : keys);
      const shape = sameText ? /** @type {const} */ ("arcs") : /** @type {const} */ ("rows");
      const geometry = { shape, width: layers.root.clientWidth, height: layers.root.clientHeight, key, query: (/** @type {number} */ index) => query(sameText ? index + first : index) };
      return { ...source, ...layers.draw(geometry, model, focus, threshold, source, all) };
    },
  };
}

/**
 * What a token of a single line is beside the focus: one of those that it looks at, or that look at it.
 * @param {Focus} focus
 * @param {number} index in the text
 * @param {number} first the token that is query 0
 * @returns {Focus}
 */
export function roleBesideFocus(focus, index, first) {
  const itself = index === (focus.side === "query" ? focus.index + first : focus.index);
  if (itself) return focus;
  return focus.side === "query" || index < first ? { side: "key", index } : { side: "query", index: index - first };
}

/** @param {TokenList} list */
function centreIn(list) {
  return (/** @type {number} */ index) => list.centre(index);
}
