/** The sentence, and under each token a bar for its effect. */

import { largest, partDescription } from "./order.js";
import { element, token } from "../core/dom.js";
import { gridStep } from "../heads/order.js";

/** @typedef {import("./order.js").EffectFacts} EffectFacts */
/** @typedef {import("./order.js").EffectPart} EffectPart */

/**
 * @param {import("../page.js").Page} page
 * @param {EffectFacts} facts
 * @param {(part: EffectPart | null) => void} onFocus tells which token the reader points at
 */
export function effectTokens({ data }, facts, onFocus) {
  const tokens = data.textTokens(facts.text ?? 0);
  const scale = largest(facts.parts, ["effect", "estimate"]);
  const readout = element("output", { class: "readout" }, "Point at a token, or go through them with the arrow keys, to read its numbers.");
  const options = facts.parts.map((part, i) => {
    const number = part.token ?? 0;
    const label = `token ${number} ${tokens[number] ?? ""}: ${partDescription(facts, part)}`;
    const bars = [facts.has_exact && drop(part.effect, scale, false), facts.has_estimates && drop(part.estimate, scale, true)];
    return element(
      "span",
      { class: "under", role: "option", tabindex: i === 0 ? 0 : -1, "aria-label": label, "aria-selected": "false", "data-token": number, onfocus: () => show(i), onpointerenter: () => show(i), onclick: (/** @type {MouseEvent} */ event) => /** @type {HTMLElement} */ (event.currentTarget).focus() },
      token(tokens[number] ?? ""),
      element("span", { class: "well", "aria-hidden": "true" }, ...bars),
    );
  });
  const list = element("div", { class: "strip", role: "listbox", "aria-label": "Tokens and their effects", "aria-orientation": "horizontal" }, ...options.flatMap((option, i) => (isAfterGap(i) ? [gap(), option] : [option])));

  /**
   * Whether tokens that the page does not have stand before this one.
   * @param {number} i
   */
  function isAfterGap(i) {
    return facts.parts[i]?.token !== (i === 0 ? 0 : Number(facts.parts[i - 1]?.token) + 1);
  }

  /** @param {number} at */
  function show(at) {
    const part = facts.parts[at];
    if (!part) return;
    options.forEach((option, i) => {
      option.setAttribute("aria-selected", String(i === at));
      option.tabIndex = i === at ? 0 : -1;
    });
    readout.replaceChildren(`${part.token} `, token(tokens[part.token ?? 0] ?? "", { class: "looker" }), `: ${partDescription(facts, part)}`);
    onFocus(part);
  }

  list.addEventListener("keydown", (event) => {
    const from = options.indexOf(/** @type {HTMLSpanElement} */ (document.activeElement));
    const to = from < 0 ? null : gridStep(event.key, from, options.length, 1);
    if (to === null) return;
    event.preventDefault();
    options[to]?.focus();
  });
  return element("div", { class: "sentence-effects" }, list, readout);
}

function gap() {
  return element("span", { class: "gap", role: "presentation" }, "…");
}

/**
 * A bar that hangs down: as long as the effect is large, hatched below 0, hollow for an estimate.
 * @param {number | null} value
 * @param {number} scale the number whose bar is full
 * @param {boolean} isEstimate
 */
function drop(value, scale, isEstimate) {
  const bar = element("span", { class: "bar drop" });
  if (value === null) return bar;
  bar.style.height = `${(Math.abs(value) / scale) * 100}%`;
  bar.classList.toggle("less", value < 0);
  bar.classList.toggle("hollow", isEstimate);
  return bar;
}
