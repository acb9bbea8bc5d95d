/** Which attention, layer and head is shown: the same for all views. */

import { make, percent } from "./dom.js";

/**
 * @param {import("../main.js").Page} page
 * @returns {HTMLElement}
 */
export function controls({ data, store }) {
  const { attentions } = data.facts;
  const groups = [...new Set(attentions.map((attention) => attention.group))];
  const group = make("select", { id: "group", onchange: () => choose(group.value, null, store.state.head) }, ...groups.map((name) => option(name, name)));
  const layer = make("select", { id: "layer", onchange: () => store.set(within(Number(layer.value), store.state.head)) });
  const head = make("select", { id: "head", onchange: () => store.set({ head: Number(head.value), more: [] }) });
  const says = make("p", { class: "says", "aria-live": "polite" });
  const proof = make("p", { class: "proof" });

  /**
   * The attention with this layer's number in a group, or the group's first.
   * @param {string} name
   * @param {number | null} number
   * @param {number} wanted
   */
  function choose(name, number, wanted) {
    const found = attentions.findIndex((each) => each.group === name && (number === null || each.layer === number));
    store.set(within(Math.max(found, 0), wanted));
  }

  /**
   * Another attention, with the choices that it can show.
   * @param {number} attention
   * @param {number} wanted head
   */
  function within(attention, wanted) {
    const { heads, queries } = data.attention(attention);
    return {
      attention,
      head: Math.min(wanted, heads.length - 1),
      query: Math.min(store.state.query, queries - 1),
      key: null,
      area: null,
    };
  }

  let listed = -1;

  function show() {
    const { attention: index, head: place } = store.state;
    const attention = data.attention(index);
    const facts = data.about(index, place);
    if (listed !== index) {
      listed = index;
      const same = attentions.map((each, i) => ({ each, i })).filter(({ each }) => each.group === attention.group);
      layer.replaceChildren(...same.map(({ each, i }) => option(String(i), String(each.layer), each.path)));
      head.replaceChildren(...attention.heads.map((each, i) => option(String(i), each.carried ? `${each.number}` : `${each.number} (picture)`)));
    }
    group.value = attention.group;
    layer.value = String(index);
    head.value = String(place);
    says.textContent = [
      `${facts.kind} head`,
      `entropy ${facts.entropy.toFixed(2)} nats`,
      facts.sink === null ? "" : `${percent(facts.sink)} on the first token`,
      attention.mask === "none" ? "every query sees every key" : `mask: ${attention.mask}`,
    ]
      .filter(Boolean)
      .join(" · ");
    proof.textContent = proven(attention);
    proof.classList.toggle("doubt", !attention.verified);
  }

  store.listen(show);
  show();
  return make(
    "nav",
    { class: "controls", "aria-label": "Which head" },
    groups.length > 1 && field("Attention", group),
    field("Layer", layer),
    field("Head", head),
    says,
    proof,
  );
}

/** @param {import("./data.js").Attention} attention */
function proven({ error, verified, within }) {
  if (error === null) return "Not proved: there is no output of the model's own to compare with, or no query that may look at anything.";
  const held = `weights @ v differs from the model's own output by ${error.toExponential(1)} of its largest value`;
  const kept = within > 0 ? `; weights computed in this page are within ${percent(within, within < 0.0001 ? 4 : 2)} of the exact ones` : "";
  return `${verified ? "Proved" : "Do not trust this one"}: ${held}${kept}.`;
}

/**
 * @param {string} label
 * @param {HTMLElement} control
 */
export function field(label, control) {
  return make("label", { class: "field" }, make("span", {}, label), control);
}

/**
 * @param {string} value
 * @param {string} text
 * @param {string} [title]
 */
function option(value, text, title) {
  return make("option", { value, title }, text);
}
