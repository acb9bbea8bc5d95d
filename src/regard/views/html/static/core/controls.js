/** Which attention, layer and head is shown: the same for all views. */

import { element, percentText } from "./dom.js";

/**
 * @param {import("../page.js").Page} page
 * @returns {HTMLElement}
 */
export function controls({ data, store }) {
  const { attentions } = data.facts;
  const groups = [...new Set(attentions.map((attention) => attention.group))];
  const group = element("select", { id: "group", onchange: () => choose(group.value, null, store.state.head) }, ...groups.map((name) => option(name, name)));
  const layer = element("select", { id: "layer", onchange: () => store.set(selectionIn(Number(layer.value), store.state.head)) });
  const head = element("select", { id: "head", onchange: () => store.set({ head: Number(head.value), extraHeads: [] }) });
  const summary = element("p", { class: "says", "aria-live": "polite" });
  const verification = element("p", { class: "proof" });

  /**
   * The attention with this layer's number in a group, or the group's first.
   * @param {string} name
   * @param {number | null} number
   * @param {number} headIndex
   */
  function choose(name, number, headIndex) {
    const attentionIndex = attentions.findIndex((each) => each.group === name && (number === null || each.layer === number));
    store.set(selectionIn(Math.max(attentionIndex, 0), headIndex));
  }

  /**
   * Another attention, with the choices that it can show.
   * @param {number} attention
   * @param {number} headIndex head
   */
  function selectionIn(attention, headIndex) {
    const { heads, queries } = data.attention(attention);
    return {
      attention,
      head: Math.min(headIndex, heads.length - 1),
      query: Math.min(store.state.query, queries - 1),
      key: null,
      viewport: null,
    };
  }

  let listedAttention = -1;

  function show() {
    const { attention: index, head: place } = store.state;
    const attention = data.attention(index);
    const facts = data.headFacts(index, place);
    if (listedAttention !== index) {
      listedAttention = index;
      const same = attentions.map((each, i) => ({ each, i })).filter(({ each }) => each.group === attention.group);
      layer.replaceChildren(...same.map(({ each, i }) => option(String(i), String(each.layer), each.path)));
      head.replaceChildren(...attention.heads.map((each, i) => option(String(i), each.payload ? `${each.number}` : `${each.number} (picture)`)));
    }
    group.value = attention.group;
    layer.value = String(index);
    head.value = String(place);
    summary.textContent = [
      `${facts.head_type} head`,
      `entropy ${facts.entropy.toFixed(2)} nats`,
      facts.first_token_share === null ? "" : `${percentText(facts.first_token_share)} on the first token`,
      attention.mask === "none" ? "every query sees every key" : `mask: ${attention.mask}`,
    ]
      .filter(Boolean)
      .join(" · ");
    verification.textContent = verificationText(attention);
    verification.classList.toggle("doubt", !attention.verified);
  }

  store.subscribe(show);
  show();
  return element(
    "nav",
    { class: "controls", "aria-label": "Which head" },
    groups.length > 1 && field("Attention", group),
    field("Layer", layer),
    field("Head", head),
    summary,
    verification,
  );
}

/** @param {import("./data.js").Attention} attention */
function verificationText({ max_error: maxError, verified, max_weight_error: weightError, computed_here: computedHere }) {
  if (maxError === null) return "Not verified: the model's own output is unknown, or no query may attend to any key.";
  const difference = `weights @ v differs from the model's own output by ${maxError.toExponential(1)} of its largest value`;
  const rounding = weightError > 0 ? `; max weight error in this page: ${percentText(weightError, weightError < 0.0001 ? 4 : 2)}` : "";
  const origin = computedHere ? "Computed in this page, nothing rounded. " : "";
  return `${origin}${verified ? "Verified" : "Not verified, do not trust this map"}: ${difference}${rounding}.`;
}

/**
 * @param {string} label
 * @param {HTMLElement} control
 */
export function field(label, control) {
  return element("label", { class: "field" }, element("span", {}, label), control);
}

/**
 * @param {string} value
 * @param {string} text
 * @param {string} [title]
 */
function option(value, text, title) {
  return element("option", { value, title }, text);
}
