/** Formulas as text with subscripts and superscripts, each with its words for those who listen. */

import { make } from "../core/dom.js";

/** @typedef {import("../core/dom.js").Child} Child */

/**
 * @param {string} spoken
 * @param {...Child} parts
 */
export function formula(spoken, ...parts) {
  return make("span", { class: "formula", role: "math", "aria-label": spoken }, ...parts);
}

/**
 * A letter of a formula, with what stands below it.
 * @param {string} name
 * @param {string} [index]
 */
export function letter(name, index) {
  return make("span", {}, make("i", {}, name), index ? make("sub", {}, index) : null);
}

/** @param {...Child} exponent */
export function power(...exponent) {
  return make("span", {}, "e", make("sup", {}, ...exponent));
}

/**
 * One part above another.
 * @param {Child[]} above
 * @param {Child[]} below
 */
export function fraction(above, below) {
  return make("span", { class: "fraction" }, make("span", {}, ...above), make("span", {}, ...below));
}

/**
 * The sum over all dimensions d, or over all keys j.
 * @param {string} index
 */
export function sumOver(index) {
  return make("span", { class: "sum" }, "Σ", make("sub", {}, index));
}

/**
 * What the scores are multiplied by.
 * @param {number} scale
 * @param {number} width
 * @param {boolean} papers whether it is 1 / sqrt(width)
 */
export function scaleFormula(scale, width, papers) {
  const value = String(Number(scale.toPrecision(4)));
  return papers
    ? formula(`1 divided by the square root of ${width}, which is ${value}`, `1/√${width} = ${value}`)
    : formula(value, value);
}

/**
 * The whole definition in one line, without the steps that this head does not have.
 * @param {import("../core/attention.js").Head} head
 * @param {boolean} papers
 */
export function wholeFormula({ width, scale, softcap, bias, may, sink, v }, papers) {
  const value = String(Number(scale.toPrecision(4)));
  /** @type {Child[]} */
  let parts = [letter("q"), " · ", letter("k", "j")];
  let spoken = "q dot k";
  if (scale !== 1) {
    parts.push(papers ? ` / √${width}` : ` × ${value}`);
    spoken += papers ? ` divided by the square root of ${width}` : ` times ${value}`;
  }
  if (softcap !== null) {
    parts = [`${softcap} · tanh((`, ...parts, `) / ${softcap})`];
    spoken = `${softcap} times the hyperbolic tangent of ${spoken}, divided by ${softcap}`;
  }
  if (bias !== null) {
    parts.push(" + ", letter("b", "j"));
    spoken += " plus the bias";
  }
  const note = [may !== null && "masked", sink !== null && "with a sink"].filter(Boolean).join(", ");
  const ends = v ? [" @ ", letter("v")] : [];
  return formula(
    `softmax of ${spoken}${note ? `, ${note}` : ""}${v ? ", times the values" : ""}`,
    "softmax",
    note ? make("sub", {}, note) : null,
    "( ",
    ...parts,
    " )",
    ...ends,
  );
}
