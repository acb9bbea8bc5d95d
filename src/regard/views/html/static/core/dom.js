/** Making elements. Text is always text: nothing here reads markup. */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Props */

/**
 * An element, such as element("button", { class: "plain", onclick: ... }, "Undo").
 *
 * Names that begin with "on" listen; true is an attribute without a value, and false, null and undefined are none.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, properties = {}, ...children) {
  return applyProps(document.createElement(tag), properties, children);
}

/**
 * An element of a drawing.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [properties]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svgElement(tag, properties = {}, ...children) {
  return applyProps(/** @type {SVGElementTagNameMap[Tag]} */ (document.createElementNS(SVG, tag)), properties, children);
}

/**
 * A token, whatever its script: it may neither turn the direction of its neighbours nor run into them.
 * @param {string} text
 * @param {Props} [properties]
 */
export function token(text, properties = {}) {
  return element("bdi", { ...properties, class: `token ${properties.class ?? ""}`.trim() }, visible(text));
}

/** Invisible characters and marks of direction; joiners that join nothing. */
const UNSEEN = /[\p{Cc}\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|^[\u200c\u200d]+|[\u200c\u200d]+$/gu;

/**
 * A text in which what cannot be seen is shown. The space before a word, which many tokenizers keep with it, stays one.
 * @param {string} text
 */
export function visible(text) {
  if (text === "") return "∅";
  const code = (/** @type {string} */ c) => `⟨${[...c].map((each) => each.codePointAt(0)?.toString(16)).join(" ")}⟩`;
  const escaped = text.replace(/\n/gu, "⏎").replace(/\t/gu, "⇥").replace(UNSEEN, code);
  return escaped.replace(/^ +$|(?<=.) +$/gu, (spaces) => "␣".repeat(spaces.length));
}

/**
 * A share in per cent: 0.0423 as "4.2 %".
 * @param {number} share
 * @param {number} [digits]
 */
export function percentText(share, digits = 1) {
  return `${(share * 100).toFixed(digits)} %`;
}

/**
 * A number in a table: four digits behind the point, and in powers of ten where those would say nothing.
 * @param {number} value
 */
export function numberText(value) {
  if (value === -Infinity) return "−∞";
  const small = value !== 0 && Math.abs(value) < 0.0005;
  const text = small || Math.abs(value) >= 1e6 ? value.toExponential(2) : value.toFixed(4);
  return text.replaceAll("-", "−");
}

/**
 * @template {Element} Made
 * @param {Made} node
 * @param {Props} properties
 * @param {Child[]} children
 * @returns {Made}
 */
function applyProps(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => typeof child === "string" || child instanceof Node));
  return node;
}
