/** The sentence: its tokens, and lines between them that are as wide as the weights. */

import { field } from "../core/controls.js";
import { element, percentText } from "../core/dom.js";
import { headLegend } from "./legend.js";
import { SentenceModel } from "./model.js";
import { jumpField, thresholdField } from "./toolbar.js";
import { columnLayout, lineLayout } from "./layouts.js";
import { topList } from "./toplist.js";

/** @typedef {import("./model.js").Focus} Focus */
/** @typedef {import("../core/store.js").State} State */

/** @type {import("../main.js").View} */
export const sentence = {
  name: "sentence",
  title: "Sentence",
  help: "Every token has a query, with which it looks at the keys of the tokens, and takes from each as much as its weight says: the wider the line, the larger the weight. Point at a token, or go through them with the arrow keys; click or Enter keeps it.",
  fits: () => true,
  mount: mountSentence,
};

/**
 * @param {HTMLElement} root
 * @param {import("../main.js").Page} page
 */
function mountSentence(root, page) {
  const { data, store } = page;
  let model = new SentenceModel(data, store.state, () => paint());
  /** What the reader points at. @type {Focus | null} */
  let pointed = null;
  let asked = 0;

  const hooks = {
    point: (/** @type {Focus | null} */ token) => {
      if (token?.side === pointed?.side && token?.index === pointed?.index) return;
      pointed = token;
      paint(false);
    },
    choose: (/** @type {Focus} */ { side, index }) => store.set(side === "query" ? { query: index } : { key: store.state.key === index ? null : index }),
    moved: () => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(() => paint());
    },
  };
  const stages = { columns: columnLayout(hooks), line: lineLayout(hooks) };
  /** @type {keyof typeof stages} */
  let chosen = "columns";

  const caption = element("p", { class: "caption" });
  const list = topList(go);
  const legend = headLegend(page);
  const threshold = thresholdField((share) => store.set({ threshold: share }));
  const layout = element("select", { onchange: () => lay(layout.value === "line" ? "line" : "columns") }, element("option", { value: "columns" }, "two columns"), element("option", { value: "line" }, "one line"));
  const jump = jumpField(
    () => ({ texts: model.tokens.queries, at: store.state.query }),
    (index) => go({ side: "query", index }),
  );
  const missing = element("div", { class: "missing", role: "status" });
  const drawing = element("div", { class: "drawing" }, stages.columns.root, caption);
  const body = element("div", { class: "body" }, drawing, list.root);
  root.append(element("div", { class: "tools" }, field("Tokens in", layout), threshold.root, jump), legend.root, missing, body);
  new ResizeObserver(hooks.moved).observe(drawing);

  /** @param {Focus} token */
  function go(token) {
    store.set(token.side === "query" ? { query: token.index } : { key: token.index });
    stages[chosen].reveal(token);
    paint();
  }

  /** @param {keyof typeof stages} name */
  function lay(name) {
    stages[chosen].root.replaceWith(stages[name].root);
    chosen = name;
    body.classList.toggle("across", name === "line");
    pointed = null;
    fill();
  }

  function fill() {
    stages[chosen].fill(model);
    stages[chosen].reveal({ side: "query", index: store.state.query });
    paint();
  }

  /** How a token looks beside the focus. @param {Focus} focus @param {Focus} token */
  function lookOf(focus, token) {
    const { query, key } = store.state;
    const itself = token.side === focus.side && token.index === focus.index;
    const kept = token.index === (token.side === "query" ? query : key);
    const there = token.side === "key" || model.hasRow(token.index);
    return { ...model.said(focus, token), mark: itself ? "focus" : kept ? "chosen" : there ? "" : "absent" };
  }

  /** @param {boolean} [all] whether more than what is pointed at has changed */
  function paint(all = true) {
    if (root.hidden || !model.heads.length) return;
    const focus = pointed ?? { side: /** @type {const} */ ("query"), index: store.state.query };
    const drawn = stages[chosen].paint(model, focus, (token) => lookOf(focus, token), store.state.threshold, all);
    list.show(model, focus);
    caption.replaceChildren(...captionOf(focus, drawn));
    drawing.dataset.lines = String(drawn.lines);
  }

  /**
   * @param {Focus} focus
   * @param {import("./layouts.js").DrawnLines} drawn
   */
  function captionOf(focus, { lines, left, queries, keys }) {
    const { threshold: least, query, key } = store.state;
    const pair = key === null ? "" : model.said({ side: "query", index: query }, { side: "key", index: key }).text;
    const said = [`${lines} ${lines === 1 ? "line" : "lines"}: ${least > 0 ? `weights of ${percentText(least)} and more` : "all weights above 0"}.`];
    if (left) said.push(`${left} weaker ones are not drawn.`);
    const away = weightOutside(model.weights(0, focus), focus.side === "query" ? keys : queries);
    if (away >= 0.0005 && focus.side === "query") said.push(`${percentText(away)} goes to keys out of sight: the list leads there.`);
    if (model.others < queries[1] - queries[0]) said.push("In a text of this length not every query's lines are drawn: point at one to see its row.");
    return [said.join(" "), pair && element("strong", { class: "pair" }, `${pair}.`)].filter((part) => part !== "");
  }

  function showMissing() {
    const { attention, head } = store.state;
    const alone = data.head(attention, head) === null;
    body.hidden = alone;
    const others = model.absent.filter((number) => number !== data.headFacts(attention, head).number);
    const withPayload = data.facts.attentions.flatMap(({ heads }, at) => heads.flatMap(({ payload }, place) => (payload ? [{ attention: at, head: place }] : [])));
    const near = withPayload.find((each) => each.attention === attention) ?? withPayload[0];
    missing.replaceChildren(
      ...[
        alone && element("p", {}, "This head is in the page as a picture only: the views Heads and Map show it. The foot of the page says how to get all of it."),
        alone && near && element("button", { type: "button", onclick: () => store.set({ ...near, query: Math.min(store.state.query, data.attention(near.attention).queries - 1), key: null, area: null }) }, "Go to a head that is carried"),
        !alone && others.length > 0 && element("p", {}, `Not drawn, since the page carries only their pictures: head ${others.join(", head ")}.`),
        !alone && !model.hasRow(store.state.query) && element("p", {}, `The row of ${model.name("query", store.state.query)} is not in this page; its foot says how to get it.`),
        !alone && !model.hasRow(store.state.query) && model.firstQueryWithRow() !== null && element("button", { type: "button", onclick: () => go({ side: "query", index: Number(model.firstQueryWithRow()) }) }, "Go to a query that is carried"),
      ].filter((part) => part instanceof Node),
    );
  }

  return (/** @type {State} */ state, /** @type {State | null} */ before) => {
    const changed = (/** @type {(keyof State)[]} */ ...names) => before === null || names.some((name) => state[name] !== before[name]);
    const other = changed("attention", "head", "more");
    if (other) {
      model = new SentenceModel(data, state, () => paint());
      legend.show(state);
    }
    if (other || changed("query")) showMissing();
    if (changed("threshold")) threshold.show(state.threshold);
    if (before === null || state.attention !== before.attention) {
      pointed = null;
      fill();
    } else if (other || changed("query", "key", "threshold")) {
      if (changed("query")) {
        pointed = null;
        stages[chosen].reveal({ side: "query", index: state.query });
      }
      paint();
    }
  };
}

/**
 * How much of a row's weight lies outside of a range.
 * @param {ArrayLike<number> | null} weights
 * @param {[number, number]} range
 */
function weightOutside(weights, [from, to]) {
  let sum = 0;
  for (let i = 0; weights && i < weights.length; i++) if (i < from || i >= to) sum += Number(weights[i]) || 0;
  return sum;
}
