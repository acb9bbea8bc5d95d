/** Where the reader types: one text, or two that are compared. */

import { element } from "../core/dom.js";

/** @typedef {{root: HTMLElement, field: HTMLTextAreaElement}} TextField */

/**
 * @param {string[]} texts that stand there at first
 * @param {boolean} canCompare
 * @param {() => void} onInput
 */
export function textFields(texts, canCompare, onInput) {
  const first = textField("text-1", "Text", () => onInput());
  const second = textField("text-2", "Second text", () => onInput());
  const compare = element("button", { type: "button", class: "compare quiet-button", onclick: () => setCompared(true) }, "Compare with a second text");
  const end = element("button", { type: "button", class: "end-compare quiet-button", "aria-label": "Remove the second text", onclick: () => setCompared(false) }, "Remove");
  second.root.append(end);
  const root = element("div", { class: "texts" }, first.root, second.root);
  const [text = "", other] = texts;
  setValue(first.field, text);
  setValue(second.field, other ?? "");
  second.root.hidden = other === undefined;
  compare.hidden = !canCompare || other !== undefined;

  /** @param {boolean} isCompared */
  function setCompared(isCompared) {
    second.root.hidden = !isCompared;
    compare.hidden = isCompared;
    if (isCompared) {
      if (second.field.value === "") setValue(second.field, first.field.value);
      fitHeight(second.field);
      second.field.focus();
      second.field.select();
    } else first.field.focus();
    onInput();
  }

  new ResizeObserver(() => [first, second].forEach(({ field }) => fitHeight(field))).observe(root);
  return {
    root,
    compare,
    /** What is typed. */
    get texts() {
      return [first, second].filter((each) => !each.root.hidden).map(({ field }) => field.value);
    },
    /** @param {string} value */
    setText(value) {
      setValue(first.field, value);
      onInput();
    },
    /** @param {string} value whose answer is here already */
    showText: (value) => setValue(first.field, value),
    focus: () => first.field.focus({ preventScroll: true }),
    /** Where no model answers, nothing can be typed. */
    disable() {
      first.field.readOnly = second.field.readOnly = true;
      compare.hidden = end.hidden = true;
    },
  };
}

/**
 * A field that is as high as its text.
 * @param {string} id
 * @param {string} label
 * @param {() => void} onInput
 * @returns {TextField}
 */
function textField(id, label, onInput) {
  const typed = () => {
    fitHeight(field);
    onInput();
  };
  const field = element("textarea", { id, rows: 1, class: "text", spellcheck: "false", autocomplete: "off", "aria-describedby": "live-status", oninput: typed });
  return { root: element("div", { class: "text-field" }, element("label", { for: id }, label), field), field };
}

/**
 * @param {HTMLTextAreaElement} field
 * @param {string} value
 */
function setValue(field, value) {
  field.value = value;
  fitHeight(field);
}

/** @param {HTMLTextAreaElement} field */
function fitHeight(field) {
  if (!field.isConnected || field.offsetParent === null) return;
  const before = field.style.height;
  field.style.height = "auto";
  const needed = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
  field.style.height = needed === before ? before : needed;
}
