/** Formulas as text with subscripts and superscripts, each with its words for those who listen. */

import { element } from "../core/dom.js";

/** @typedef {import("../core/dom.js").Child} Child */

/**
 * @param {string} spoken
 * @param {...Child} parts
 */
export function formula(spoken, ...parts) {
  return element("span", { class: "formula", role: "math", "aria-label": spoken }, ...parts);
}

/**
 * A letter of a formula, with what stands below it.
 * @param {string} name
 * @param {string} [index]
 */
export function symbol(name, index) {
  return element("span", {}, element("i", {}, name), index ? element("sub", {}, index) : null);
}

/** @param {...Child} exponent */
export function exponential(...exponent) {
  return element("span", {}, "e", element("sup", {}, ...exponent));
}

/**
 * One part above another.
 * @param {Child[]} above
 * @param {Child[]} below
 */
export function fraction(above, below) {
  return element("span", { class: "fraction" }, element("span", {}, ...above), element("span", {}, ...below));
}

/**
 * The sum over all dimensions d, or over all keys j.
 * @param {string} index
 */
export function sumOver(index) {
  return element("span", { class: "sum" }, "Σ", element("sub", {}, index));
}

/**
 * What the scores are multiplied by.
 * @param {number} scale
 * @param {number} dKey
 * @param {boolean} isPaper whether it is 1 / sqrt(width)
 */
export function scaleFormula(scale, dKey, isPaper) {
  const value = String(Number(scale.toPrecision(4)));
  return isPaper
    ? formula(`1 divided by the square root of ${dKey}, which is ${value}`, `1/√${dKey} = ${value}`)
    : formula(value, value);
}

/**
 * The whole definition in one line, without the steps that this head does not have.
 * @param {import("../core/attention.js").Head} head
 * @param {boolean} isPaper
 */
export function attentionFormula({ dKey, scale, softcap, bias, allowed, sink, v }, isPaper) {
  const value = String(Number(scale.toPrecision(4)));
  /** @type {Child[]} */
  let parts = [symbol("q"), " · ", symbol("k", "j")];
  let spoken = "q dot k";
  if (scale !== 1) {
    parts.push(isPaper ? ` / √${dKey}` : ` × ${value}`);
    spoken += isPaper ? ` divided by the square root of ${dKey}` : ` times ${value}`;
  }
  if (softcap !== null) {
    parts = [`${softcap} · tanh((`, ...parts, `) / ${softcap})`];
    spoken = `${softcap} times the hyperbolic tangent of ${spoken}, divided by ${softcap}`;
  }
  if (bias !== null) {
    parts.push(" + ", symbol("b", "j"));
    spoken += " plus the bias";
  }
  const note = [allowed !== null && "masked", sink !== null && "with a sink"].filter(Boolean).join(", ");
  const ends = v ? [" @ ", symbol("v")] : [];
  return formula(
    `softmax of ${spoken}${note ? `, ${note}` : ""}${v ? ", times the values" : ""}`,
    "softmax",
    note ? element("sub", {}, note) : null,
    "( ",
    ...parts,
    " )",
    ...ends,
  );
}
