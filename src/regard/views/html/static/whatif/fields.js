/** Fields of numbers that never lose what is typed in them; and the two that change a whole row. */

import { element } from "../core/dom.js";
import { setDisabled } from "../row/picker.js";
import { shortNumber, parseNumber } from "./edits.js";

/** @typedef {import("./whatif.js").EditedRow} EditedRow */
/** @typedef {import("./whatif.js").Editing} Editing */

/** The slider of the temperature goes from 1/8 to 8. */
const OCTAVES = 3;

let numFields = 0;

/**
 * A field for a number. While it is typed in, or says what is no number, nothing overwrites it.
 * @param {object} options
 * @param {string} options.label
 * @param {string} options.name of its class
 * @param {number} options.step of the arrow keys
 * @param {boolean} [options.positive]
 * @param {(value: number | null) => void} options.preview null where the field says what it said at first
 * @param {() => void} options.commit
 */
export function numberField({ label, name, step, positive = false, preview, commit }) {
  const id = `number-${numFields++}`;
  const input = element("input", { type: "number", step: "any", class: name, "aria-label": label, "aria-describedby": id, autocomplete: "off" });
  const message = element("span", { class: "message", id, role: "alert" });
  let original = "";
  let current = "";

  /** @param {string} error */
  function showError(error) {
    if (message.textContent !== error) message.textContent = error;
    if (error) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }

  /** @param {string} text */
  function parse(text) {
    const typed = parseNumber(text, input.validity.badInput, positive);
    showError("error" in typed ? typed.error : "");
    if ("value" in typed) preview(text === original ? null : typed.value);
  }
  input.addEventListener("input", () => parse(input.value));
  input.addEventListener("change", commit);
  input.addEventListener("keydown", (event) => {
    const by = { ArrowUp: step, ArrowDown: -step }[event.key];
    if (by === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const next = Number(current) + by * (event.shiftKey ? 10 : 1);
    if (positive && next <= 0) return;
    input.value = String(Number(next.toFixed(6)));
    parse(input.value);
  });

  return {
    input,
    message,
    /**
     * @param {number} first what the model has
     * @param {number} value
     * @param {boolean} force
     */
    update(first, value, force) {
      original = shortNumber(first);
      current = shortNumber(value);
      const isTyping = document.activeElement === input || input.hasAttribute("aria-invalid");
      if (isTyping && !force) return;
      showError("");
      input.value = current;
    },
    /** Puts back what was there before something that is no number; answers whether there was such a thing. */
    restore() {
      if (!input.hasAttribute("aria-invalid")) return false;
      showError("");
      input.value = current;
      return true;
    },
  };
}

/** @param {Editing} editing */
export function rowFields({ preview, keep, commit }) {
  const scale = numberField({ label: "Scale", name: "scale", step: 0.01, preview: (value) => preview({ kind: "scale", value }), commit });
  const temperature = numberField({
    label: "Temperature",
    name: "temperature",
    step: 0.1,
    positive: true,
    preview: (value) => preview({ kind: "temperature", value }),
    commit,
  });
  const slider = element("input", {
    type: "range",
    class: "temperature-slider",
    min: -OCTAVES,
    max: OCTAVES,
    step: 0.05,
    "aria-label": "Temperature, from 1/8 to 8",
    oninput: () => {
      const value = 2 ** Number(slider.value);
      preview({ kind: "temperature", value: value === 1 ? null : Number(value.toPrecision(3)) });
    },
    onchange: commit,
  });
  const scaleWas = element("span", { class: "was" });
  const resetScale = element("button", { type: "button", onclick: () => keep({ kind: "scale", value: null }) }, "Reset");
  const resetTemperature = element("button", { type: "button", onclick: () => keep({ kind: "temperature", value: null }) }, "Reset");
  const root = element(
    "div",
    { class: "whole-row" },
    element("div", { class: "group" }, element("b", {}, "Scale"), scale.input, scaleWas, resetScale, scale.message),
    element("div", { class: "group" }, element("b", {}, "Temperature"), slider, temperature.input, resetTemperature, temperature.message),
    element("p", { class: "quiet" }, "The scale multiplies each score. The temperature divides what goes into the softmax: below 1 the strongest key gains, above 1 all keys become more alike."),
  );

  return {
    root,
    /**
     * @param {EditedRow} row
     * @param {boolean} force
     */
    update({ head, edits }, force) {
      const value = edits.temperature ?? 1;
      scale.update(head.scale, edits.scale ?? head.scale, force || edits.scale === undefined && document.activeElement === resetScale);
      temperature.update(1, value, force || (edits.temperature === undefined && document.activeElement === resetTemperature));
      if (document.activeElement !== slider || force) slider.value = String(Math.log2(value));
      slider.setAttribute("aria-valuetext", shortNumber(value));
      scaleWas.textContent = edits.scale === undefined ? "as the model has it" : `was ${shortNumber(head.scale)}`;
      setDisabled(resetScale, edits.scale === undefined);
      setDisabled(resetTemperature, edits.temperature === undefined);
    },
    restore: () => [scale, temperature].some((each) => each.restore()),
  };
}
