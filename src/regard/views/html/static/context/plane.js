/** The plane in which the words of all sentences differ most, with the chosen word's places in it. */

import { fitPoints, labelText, placeLabels, sentenceMarker, sentenceSwatch, stateName } from "./plotting.js";
import { headColour } from "../core/colour.js";
import { svgElement, element, percentText, visible } from "../core/dom.js";

/** @typedef {import("../core/data.js").Context} Context */
/** @typedef {import("./plotting.js").Point} Point */

/**
 * A word in a sentence.
 * @typedef {object} Dot
 * @property {number | null} word its number, where it is one that can be picked
 * @property {string} text
 * @property {number} sentence
 * @property {Point[]} track at each state
 */

/**
 * @param {Context} facts
 * @param {(word: number) => void} pick
 */
export function wordPlane(facts, pick) {
  const box = element("div", { class: "plane" });
  const caption = element("figcaption", {});
  const readout = element("p", { class: "readout" });
  const legend = element("p", { class: "legend" }, ...facts.sentences.map((_, i) => element("span", {}, sentenceSwatch(i), `sentence ${i}`)));
  const root = element("figure", {}, caption, box, legend, readout);
  const all = allDots(facts);
  let [word, state, width] = [0, 0, 0];
  /** @type {{dots: Dot[], spots: Point[], ring: SVGElement}} */
  let drawn = { dots: [], spots: [], ring: svgElement("g", {}) };

  box.addEventListener("pointermove", (event) => point(nearest(event)));
  box.addEventListener("pointerleave", () => point(-1));
  box.addEventListener("click", (event) => {
    const at = drawn.dots[nearest(event)]?.word;
    if (typeof at === "number") pick(at);
  });

  /** @param {MouseEvent} event */
  function nearest(event) {
    const frame = box.getBoundingClientRect();
    const distances = drawn.spots.map(([x, y]) => Math.hypot(x - event.clientX + frame.left, y - event.clientY + frame.top));
    const minDistance = Math.min(...distances);
    return minDistance < 18 ? distances.indexOf(minDistance) : -1;
  }

  /** @param {number} at the dot that is pointed at */
  function point(at) {
    const [dot, spot] = [drawn.dots[at], drawn.spots[at]];
    drawn.ring.setAttribute("visibility", dot ? "visible" : "hidden");
    box.classList.toggle("picks", typeof dot?.word === "number");
    if (spot) drawn.ring.setAttribute("transform", `translate(${spot[0].toFixed(1)} ${spot[1].toFixed(1)})`);
    readout.textContent = dot ? `"${visible(dot.text)}" in sentence ${dot.sentence}` : distanceText();
  }

  /** How far apart the chosen word's places are here. */
  function distanceText() {
    const wordSpots = drawn.dots.flatMap((dot, i) => (dot.word === word ? [{ dot, spot: /** @type {Point} */ (drawn.spots[i]) }] : []));
    const [first, ...others] = wordSpots.toSorted((a, b) => a.dot.sentence - b.dot.sentence);
    const plotWidth = Math.max(1, ...drawn.spots.map(([x]) => x)) - Math.min(...drawn.spots.map(([x]) => x));
    if (!first) return "";
    const distanceTexts = others.map(({ dot, spot }) => {
      const distances = Math.hypot(spot[0] - first.spot[0], spot[1] - first.spot[1]);
      return `sentence ${dot.sentence}: ${percentText(distances / plotWidth, 0)}`;
    });
    return `Distance of "${visible(first.dot.text)}" from its place in sentence ${first.dot.sentence}, of the drawing's width: ${distanceTexts.join(", ")}.`;
  }

  function drawPlane() {
    const height = Math.min(460, Math.max(300, width * 0.8));
    // The chosen word comes first: its labels have the choice of places; then those that can be picked.
    const dots = all.toSorted((a, b) => dotRank(a, word) - dotRank(b, word));
    const spots = fitPoints(dots.map(({ track }) => /** @type {Point} */ (track[state])), { width, height, margin: 30 });
    const texts = dots.map((dot) => labelText(visible(dot.text)) + (dot.word === word ? ` · ${dot.sentence}` : ""));
    const labels = placeLabels(spots, texts, { width, height }, dots.filter((dot) => dot.word === word).length);
    const wordSpots = dots.flatMap((dot, i) => (dot.word === word ? [/** @type {Point} */ (spots[i])] : []));
    const ring = svgElement("circle", { class: "ring", r: 9, visibility: "hidden" });
    const marks = dots.map((dot, i) => {
      const chosen = dot.word === word;
      const [spot, label] = [/** @type {Point} */ (spots[i]), labels[i]];
      return svgElement(
        "g",
        { class: chosen ? "own" : "other", "data-word": dot.word, "data-sentence": dot.sentence },
        sentenceMarker(dot.sentence, chosen ? 6 : 2.6, spot, chosen ? { fill: headColour(dot.sentence) } : {}),
        label && svgElement("text", { x: spot[0] + label[0], y: spot[1] + label[1] }, String(texts[i])),
      );
    });
    const [start, ...ends] = wordSpots;
    const label = `Plane of all words ${stateName(state)}: ${dots.length} places of words. `;
    const drawing = svgElement(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" },
      ...(start ? ends.map((end) => svgElement("line", { class: "way", x1: start[0], y1: start[1], x2: end[0], y2: end[1] })) : []),
      ...marks.reverse(),
      ring,
    );
    drawn = { dots, spots, ring };
    drawing.setAttribute("aria-label", label + distanceText());
    box.replaceChildren(drawing);
    caption.textContent =
      `All words of the sentences ${stateName(state)}, in the plane in which they differ most. It shows ${percentText(Number(facts.explained_variance[state]), 0)} of ` +
      "all differences between their vectors: near here need not be near in all dimensions.";
    point(-1);
  }

  return {
    root,
    /** @param {number} next the chosen word */
    show(next) {
      word = next;
    },
    /** @param {number} next */
    state(next) {
      state = next;
      width ||= box.clientWidth;
      if (width > 0) drawPlane();
    },
    resize() {
      if (box.clientWidth === 0 || box.clientWidth === width) return;
      width = box.clientWidth;
      drawPlane();
    },
  };
}

/**
 * @param {Context} facts
 * @returns {Dot[]}
 */
function allDots({ words, other_words: otherWords }) {
  return [...words, ...otherWords].flatMap(({ word, points }, number) =>
    points.flatMap((track, sentence) => (track ? [{ word: number < words.length ? number : null, text: word, sentence, track }] : [])),
  );
}

/**
 * @param {Dot} dot
 * @param {number} word
 */
function dotRank(dot, word) {
  return dot.word === word ? 0 : dot.word === null ? 1 : 2;
}
