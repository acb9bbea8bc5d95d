/** How a decoder shall write: its settings, Generate and Stop. */

import { field } from "../core/controls.js";
import { element } from "../core/dom.js";

/**
 * @typedef {object} WritingSettings
 * @property {number} max_new_tokens
 * @property {number} temperature 0: the likeliest token each time
 * @property {number} seed
 */

/** @type {[keyof WritingSettings, string, Record<string, string | number>][]} */
const FIELDS = [
  ["max_new_tokens", "Most new tokens", { min: 1, max: 512, step: 1 }],
  ["temperature", "Temperature", { min: 0, max: 5, step: 0.1, title: "0: always the likeliest token" }],
  ["seed", "Seed", { min: 0, max: 2 ** 31 - 1, step: 1, title: "With a temperature: the same seed writes the same text" }],
];

/**
 * @param {WritingSettings} settings changed by the reader
 * @param {{start: () => void, stop: () => void}} actions
 */
export function writingForm(settings, { start, stop }) {
  const inputs = FIELDS.map(([name, label, limits]) => {
    const input = element("input", { type: "number", id: `writing-${name}`, required: true, value: settings[name], ...limits, oninput: () => input.validity.valid && (settings[name] = input.valueAsNumber) });
    return field(label, input);
  });
  const generate = element("button", { id: "writing-generate" }, "Generate");
  const halt = element("button", { id: "writing-stop", type: "button", onclick: stop }, "Stop");
  const onsubmit = (/** @type {Event} */ event) => {
    event.preventDefault();
    start();
  };
  return {
    root: element("form", { class: "tools", onsubmit }, ...inputs, generate, halt),
    /** @param {boolean} isWriting */
    show(isWriting) {
      const hadFocus = [generate, halt].some((button) => button === document.activeElement);
      generate.disabled = isWriting;
      halt.disabled = !isWriting;
      if (hadFocus) (isWriting ? halt : generate).focus();
    },
  };
}
