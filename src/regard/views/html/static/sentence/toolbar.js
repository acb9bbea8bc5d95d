/** The tools above the sentence: the threshold, and a field to go to a token. */

import { field } from "../core/controls.js";
import { element, percentText } from "../core/dom.js";
import { findToken } from "../row/format.js";

/** Steps of the slider, in per cent: small ones where most weights are. */
const THRESHOLDS = [0, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 90, 100];

/** @param {(share: number) => void} choose */
export function thresholdField(choose) {
  const output = element("output", {});
  const slider = element("input", {
    type: "range",
    min: 0,
    max: THRESHOLDS.length - 1,
    step: 1,
    "aria-label": "Smallest weight that is drawn",
    oninput: () => choose(Number(THRESHOLDS[Number(slider.value)]) / 100),
  });
  const root = field("Smallest weight drawn", element("span", { class: "slider" }, slider, output));

  /** @param {number} share */
  function show(share) {
    const at = thresholdStep(share);
    if (Number(slider.value) !== at) slider.value = String(at);
    output.textContent = percentText(share);
    slider.setAttribute("aria-valuetext", percentText(share));
  }
  return { root, show };
}

/**
 * The step of the slider that is nearest to a share.
 * @param {number} share
 */
export function thresholdStep(share) {
  let best = 0;
  THRESHOLDS.forEach((step, i) => {
    if (Math.abs(step - share * 100) < Math.abs(Number(THRESHOLDS[best]) - share * 100)) best = i;
  });
  return best;
}

/**
 * A field to go to a query by.
 * @param {() => {texts: string[], at: number}} where
 * @param {(query: number) => void} go
 * @param {string} id of what it says, its own in the document
 */
export function jumpField(where, go, id) {
  const input = element("input", { type: "text", size: 10, placeholder: "7 or bank", autocomplete: "off", "aria-describedby": id });
  const output = element("span", { id, role: "status", class: "jumped" });
  const onsubmit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const { texts, at } = where();
    const index = findToken(texts, input.value, at, () => true);
    output.textContent = index >= 0 ? "" : `no query has this text, and numbers go from 0 to ${texts.length - 1}`;
    if (index >= 0) go(index);
  };
  return element("form", { class: "jump", onsubmit }, field("Go to query", input), element("button", {}, "Go"), output);
}
