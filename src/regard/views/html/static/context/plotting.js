/** The drawings of words in context: names of states, scales, label placement, markers. */

import { headColour } from "../core/colour.js";
import { svgElement } from "../core/dom.js";

/** @typedef {import("../core/data.js").ContextWord} ContextWord */
/** @typedef {[number, number]} Point in pixels */

/**
 * The name of a state: the input of the first layer, or the output of a layer.
 * @param {number} state
 */
export function stateName(state) {
  return state === 0 ? "at the input" : `after layer ${state - 1}`;
}

/**
 * How much a word's vector differs after the last layer, in the sentence that changes it most.
 * @param {ContextWord} word
 */
export function wordChange(word) {
  return Math.max(0, ...word.cosines.map(({ cosine }) => 1 - Number(cosine.at(-1))));
}

/**
 * The numbers of the words, those that change most first.
 * @param {ContextWord[]} words
 */
export function wordsByChange(words) {
  const changes = words.map(wordChange);
  return words.map((_, i) => i).sort((a, b) => Number(changes[b]) - Number(changes[a]) || a - b);
}

/**
 * The first sentence that has a word: the others are compared with it.
 * @param {ContextWord} word
 */
export function firstSentence(word) {
  return word.points.findIndex((at) => at !== null);
}

/**
 * A scale of cosines, from 1 down to a round number below the smallest.
 * @param {number[]} cosines
 */
export function cosineScale(cosines) {
  const minimum = Math.min(0.95, ...cosines);
  const step = [0.01, 0.02, 0.05, 0.1, 0.2].find((each) => (1 - minimum) / each <= 6) ?? 0.5;
  const count = Math.ceil((1 - minimum) / step - 1e-9);
  const ticks = Array.from({ length: count + 1 }, (_, i) => 1 - (count - i) * step);
  return { low: 1 - count * step, ticks, digits: step < 0.1 ? 2 : 1 };
}

/**
 * Positions for labels near the wanted heights, in their order and without overlap.
 * @param {number[]} wanted
 * @param {number} gap
 * @param {number} bottom the lowest one may stand here
 * @returns {number[]}
 */
export function spreadLabels(wanted, gap, bottom) {
  const order = wanted.map((_, i) => i).sort((a, b) => Number(wanted[a]) - Number(wanted[b]));
  const placed = [...wanted];
  let minimum = -Infinity;
  for (const i of order) minimum = (placed[i] = Math.max(Number(wanted[i]), minimum)) + gap;
  let maximum = bottom;
  for (const i of order.reverse()) maximum = (placed[i] = Math.min(Number(placed[i]), maximum)) - gap;
  return placed;
}

/**
 * Points scaled to a drawing, with one scale for both directions, which keeps ratios of distances.
 * @param {Point[]} points
 * @param {{width: number, height: number, margin: number}} size
 * @returns {Point[]}
 */
export function fitPoints(points, { width, height, margin }) {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const fits = Math.min((width - 2 * margin) / (right - left), (height - 2 * margin) / (high - low));
  const scale = Number.isFinite(fits) ? fits : 0;
  return points.map(([x, y]) => [width / 2 + (x - (left + right) / 2) * scale, height / 2 - (y - (low + high) / 2) * scale]);
}

/**
 * A label's text, no longer than a drawing has room for.
 * @param {string} text
 */
export function labelText(text) {
  const letters = [...text];
  return letters.length > 18 ? `${letters.slice(0, 17).join("")}…` : text;
}

/**
 * About how wide a text of 12 pixels is.
 * @param {string} text
 */
export function labelWidth(text) {
  return [...text].reduce((sum, symbol) => sum + (Number(symbol.codePointAt(0)) < 0x1100 ? 7 : 13), 0);
}

/**
 * For each dot the offset of its label; null where there is no room. The first dots come first.
 * @param {Point[]} dots
 * @param {string[]} texts
 * @param {{width: number, height: number}} size
 * @param {number} bold the number of first dots whose labels may cover other dots
 * @returns {(Point | null)[]}
 */
export function placeLabels(dots, texts, { width, height }, bold) {
  const around = dots.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  /** @type {number[][]} left, top, right, bottom */
  const labels = [];
  return dots.map(([x, y], i) => {
    const textWidth = labelWidth(String(texts[i]));
    const others = [...labels, ...(i < bold ? around.slice(0, bold) : around).filter((_, j) => j !== i)];
    /** @type {Point[]} */
    const places = [[8, 4], [-8 - textWidth, 4], [-textWidth / 2, -9], [-textWidth / 2, 17], [7, -7], [7, 15], [-7 - textWidth, -7], [-7 - textWidth, 15]];
    const position = places.find(([dx, dy]) => {
      const [left, top, right, bottom] = labelBox(x + dx, y + dy, textWidth);
      if (left < 0 || right > width || top < 0 || bottom > height) return false;
      return !others.some(([l = 0, t = 0, r = 0, b = 0]) => left < r && right > l && top < b && bottom > t);
    });
    if (!position) return null;
    labels.push(labelBox(x + position[0], y + position[1], textWidth));
    return position;
  });
}

/**
 * @param {number} x
 * @param {number} y of the base line
 * @param {number} textWidth
 * @returns {[number, number, number, number]}
 */
function labelBox(x, y, textWidth) {
  return [x, y - 11, x + textWidth, y + 3];
}

/** The shapes of the sentences' marks, about 1 in size, around 0. */
const MARKERS = [
  "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1 -1 0Z",
  "M-.9 -.9H.9V.9H-.9Z",
  "M0 -1.15L1.1 .85H-1.1Z",
  "M0 -1.25L1.25 0L0 1.25L-1.25 0Z",
  "M-.35 -1.1H.35V-.35H1.1V.35H.35V1.1H-.35V.35H-1.1V-.35H-.35Z",
  "M0 1.15L1.1 -.85H-1.1Z",
];

/**
 * A sentence's mark, known by its shape as well as by its colour.
 * @param {number} sentence
 * @param {number} size
 * @param {Point} at
 * @param {import("../core/dom.js").Props} [properties]
 */
export function sentenceMarker(sentence, size, [x, y], properties = {}) {
  const d = String(MARKERS[sentence % MARKERS.length]);
  return svgElement("path", { d, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})`, ...properties });
}

/**
 * The same beside text.
 * @param {number} sentence
 */
export function sentenceSwatch(sentence) {
  return svgElement("svg", { viewBox: "-1.4 -1.4 2.8 2.8", class: "swatch", "aria-hidden": "true" }, sentenceMarker(sentence, 1, [0, 0], { fill: headColour(sentence) }));
}
