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

/** @type {import("../page.js").View} */
export const sentence = {
  name: "sentence",
  title: "Sentence",
  help: "Every token has a query, with which it looks at the keys of the tokens, and takes from each as much as its weight says: the wider the line, the larger the weight. Point at a token, or go through them with the arrow keys; click or Enter keeps it.",
  fits: () => true,
  mount: mountSentence,
};

/**
 * @param {HTMLElement} root
 * @param {import("../page.js").Page} page
 */
function mountSentence(root, page) {
  const { data, store } = page;
  let model = new SentenceModel(data, store.state, () => paint());
  /** What the reader points at. @type {Focus | null} */
  let hovered = null;
  let frame = 0;

  const events = {
    point: (/** @type {Focus | null} */ token) => {
      if (token?.side === hovered?.side && token?.index === hovered?.index) return;
      hovered = token;
      paint(false);
    },
    choose: (/** @type {Focus} */ { side, index }) => store.set(side === "query" ? { query: index } : { key: store.state.key === index ? null : index }),
    moved: () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => paint());
    },
  };
  const layouts = { columns: columnLayout(events), line: lineLayout(events) };
  /** @type {keyof typeof layouts} */
  let layoutName = page.choices.tokensIn === "line" ? "line" : "columns";

  const caption = element("p", { class: "caption" });
  const list = topList(go);
  const legend = headLegend(page);
  const threshold = thresholdField((share) => store.set({ threshold: share }));
  const layout = element("select", { onchange: () => switchLayout(layout.value === "line" ? "line" : "columns") }, element("option", { value: "columns" }, "two columns"), element("option", { value: "line" }, "one line"));
  layout.value = layoutName;
  const jump = jumpField(
    () => ({ texts: model.tokens.queries, at: store.state.query }),
    (index) => go({ side: "query", index }),
    `sentence-jump${page.suffix}`,
  );
  const missing = element("div", { class: "missing", role: "status" });
  const drawing = element("div", { class: "drawing" }, layouts[layoutName].root, caption);
  const body = element("div", { class: layoutName === "line" ? "body across" : "body" }, drawing, list.root);
  root.append(element("div", { class: "tools" }, field("Tokens in", layout), threshold.root, jump), legend.root, missing, body);
  new ResizeObserver(events.moved).observe(drawing);

  /** @param {Focus} token */
  function go(token) {
    store.set(token.side === "query" ? { query: token.index } : { key: token.index });
    layouts[layoutName].reveal(token);
    paint();
  }

  /** @param {keyof typeof layouts} name */
  function switchLayout(name) {
    layouts[layoutName].root.replaceWith(layouts[name].root);
    layoutName = name;
    page.choices.tokensIn = name;
    body.classList.toggle("across", name === "line");
    hovered = null;
    fill();
  }

  function fill() {
    layouts[layoutName].fill(model);
    layouts[layoutName].reveal({ side: "query", index: store.state.query });
    paint();
  }

  /** How a token looks beside the focus. @param {Focus} focus @param {Focus} token */
  function tokenLook(focus, token) {
    const { query, key } = store.state;
    const itself = token.side === focus.side && token.index === focus.index;
    const isChosen = token.index === (token.side === "query" ? query : key);
    const hasRow = token.side === "key" || model.hasRow(token.index);
    return { ...model.describe(focus, token), mark: itself ? "focus" : isChosen ? "chosen" : hasRow ? "" : "absent" };
  }

  /** @param {boolean} [all] whether more than what is pointed at has changed */
  function paint(all = true) {
    if (root.hidden || !model.heads.length) return;
    const focus = hovered ?? { side: /** @type {const} */ ("query"), index: store.state.query };
    const result = layouts[layoutName].paint(model, focus, (token) => tokenLook(focus, token), store.state.threshold, all);
    list.show(model, focus);
    caption.replaceChildren(...captionOf(focus, result));
    drawing.dataset.lines = String(result.lines);
  }

  /**
   * @param {Focus} focus
   * @param {import("./layouts.js").DrawnLines} result
   */
  function captionOf(focus, { lines, left, queries, keys }) {
    const { threshold: threshold_, query, key } = store.state;
    const pair = key === null ? "" : model.describe({ side: "query", index: query }, { side: "key", index: key }).text;
    const sentences = [`${lines} ${lines === 1 ? "line" : "lines"}: ${threshold_ > 0 ? `weights of ${percentText(threshold_)} and more` : "all weights above 0"}.`];
    if (left) sentences.push(`${left} weaker ones are not drawn.`);
    const outside = weightOutside(model.weights(0, focus), focus.side === "query" ? keys : queries);
    if (outside >= 0.0005 && focus.side === "query") sentences.push(`${percentText(outside)} goes to keys out of sight: the list leads there.`);
    if (model.maxOtherQueries < queries[1] - queries[0]) sentences.push("In a text of this length not every query's lines are drawn: point at one to see its row.");
    return [sentences.join(" "), pair && element("strong", { class: "pair" }, `${pair}.`)].filter((part) => part !== "");
  }

  function showMissing() {
    const { attention, head } = store.state;
    const headMissing = data.head(attention, head) === null;
    body.hidden = headMissing;
    const others = model.missingHeads.filter((number) => number !== data.headFacts(attention, head).number);
    const withPayload = data.facts.attentions.flatMap(({ heads }, at) => heads.flatMap(({ payload }, place) => (payload ? [{ attention: at, head: place }] : [])));
    const target = withPayload.find((each) => each.attention === attention) ?? withPayload[0];
    missing.replaceChildren(
      ...[
        headMissing && element("p", {}, "This head is in the page as a picture only: the views Heads and Map show it. The page's footer says how to get its weights."),
        headMissing && target && element("button", { type: "button", onclick: () => store.set({ ...target, query: Math.min(store.state.query, data.attention(target.attention).queries - 1), key: null, viewport: null }) }, "Go to a head with a payload"),
        !headMissing && others.length > 0 && element("p", {}, `Not drawn, because the page has only their pictures: head ${others.join(", head ")}.`),
        !headMissing && !model.hasRow(store.state.query) && element("p", {}, `The row of ${model.name("query", store.state.query)} is not in this page; the page's footer says how to get it.`),
        !headMissing && !model.hasRow(store.state.query) && model.firstQueryWithRow() !== null && element("button", { type: "button", onclick: () => go({ side: "query", index: Number(model.firstQueryWithRow()) }) }, "Go to a query with a row"),
      ].filter((part) => part instanceof Node),
    );
  }

  return (/** @type {State} */ state, /** @type {State | null} */ before) => {
    const changed = (/** @type {(keyof State)[]} */ ...names) => before === null || names.some((name) => state[name] !== before[name]);
    const other = changed("attention", "head", "extraHeads");
    if (other) {
      model = new SentenceModel(data, state, () => paint());
      legend.show(state);
    }
    if (other || changed("query")) showMissing();
    if (changed("threshold")) threshold.show(state.threshold);
    if (before === null || state.attention !== before.attention) {
      hovered = null;
      fill();
    } else if (other || changed("query", "key", "threshold")) {
      if (changed("query")) {
        hovered = null;
        layouts[layoutName].reveal({ side: "query", index: state.query });
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
