/** A word's cosines layer by layer, as lines. */

import { cosineScale, firstSentence, sentenceMarker, spreadLabels, stateName } from "./plotting.js";
import { headColour } from "../core/colour.js";
import { svgElement, element, visible } from "../core/dom.js";

/** @typedef {import("../core/data.js").ContextWord} ContextWord */

/** Around the lines: numbers on the left, names on the right, layers below. */
const MARGIN = { left: 46, right: 92, top: 30, bottom: 46 };

/**
 * @param {(state: number) => void} choose
 */
export function cosineChart(choose) {
  const box = element("div", { class: "chart" });
  const caption = element("figcaption", {}, "Cosine between the word's vectors in two sentences. 1: they point in the same direction.");
  const readout = element("p", { class: "readout" });
  const root = element("figure", {}, caption, box, readout);
  /** @type {ContextWord | null} */
  let word = null;
  let [chosen, hovered, width] = [0, -1, 0];
  let line = svgElement("line", {});
  let plot = { x: (/** @type {number} */ _) => 0, step: 1 };

  box.addEventListener("pointermove", (event) => hover(stateAt(event)));
  box.addEventListener("pointerleave", () => hover(-1));
  box.addEventListener("click", (event) => choose(stateAt(event)));

  /** @param {MouseEvent} event */
  function stateAt(event) {
    const states = word?.cosines[0]?.cosine.length ?? 1;
    const x = event.clientX - box.getBoundingClientRect().left;
    return Math.min(states - 1, Math.max(0, Math.round((x - plot.x(0)) / plot.step)));
  }

  /** @param {number} state */
  function hover(state) {
    hovered = state;
    updateReadout();
  }

  function updateReadout() {
    if (!word) return;
    const state = hovered < 0 ? chosen : hovered;
    const x = plot.x(state).toFixed(1);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    const values = word.cosines.map(({ sentence, cosine }) => `sentence ${sentence}: ${Number(cosine[state]).toFixed(3)}`);
    readout.textContent = `${stateName(state)}: ${values.join(", ")}`;
  }

  function drawLines() {
    if (!word) return;
    const { cosines } = word;
    const states = cosines[0]?.cosine.length ?? 1;
    const { left, right, top, bottom } = MARGIN;
    const height = Math.max(300, top + bottom + 18 * cosines.length);
    const { low, ticks, digits } = cosineScale(cosines.flatMap(({ cosine }) => cosine));
    const step = (width - left - right) / Math.max(1, states - 1);
    const x = (/** @type {number} */ state) => left + state * step;
    const y = (/** @type {number} */ cosine) => top + ((1 - cosine) / (1 - low)) * (height - top - bottom);
    plot = { x, step };
    line = svgElement("line", { class: "now", y1: top - 6, y2: height - bottom });
    const names = spreadLabels(cosines.map(({ cosine }) => y(Number(cosine.at(-1)))), 16, height - bottom + 4);
    const sparse = Math.ceil(22 / step);
    const drawing = svgElement(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": chartDescription(word) },
      ...ticks.map((tick) =>
        svgElement(
          "g",
          { class: "grid" },
          svgElement("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
          svgElement("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick.toFixed(digits).replace("-", "−")),
        ),
      ),
      ...Array.from({ length: states }, (_, state) =>
        (state % sparse === 0 || state === states - 1) && (state === states - 1 || states - 1 - state >= sparse)
          ? svgElement("text", { class: "tick", x: x(state), y: height - bottom + 18, "text-anchor": "middle" }, state === 0 ? "input" : `${state - 1}`)
          : svgElement("g", {}),
      ),
      svgElement("text", { class: "axis", x: left + (width - left - right) / 2, y: height - 8, "text-anchor": "middle" }, "at the input, then after each layer"),
      svgElement("text", { class: "axis", x: 8, y: 16 }, "cosine"),
      line,
      ...cosines.map(({ sentence, cosine }, i) => {
        const spots = cosine.map((values, state) => /** @type {[number, number]} */ ([x(state), y(values)]));
        const at = Number(names[i]);
        return svgElement(
          "g",
          { class: "line", "data-sentence": sentence },
          svgElement("polyline", { points: spots.map((spot) => spot.map((part) => part.toFixed(1)).join(",")).join(" "), stroke: headColour(sentence) }),
          ...spots.map((spot) => sentenceMarker(sentence, 4, spot, { fill: headColour(sentence) })),
          svgElement("path", { class: "leader", d: `M${width - right + 6} ${y(Number(cosine.at(-1))).toFixed(1)}L${width - right + 14} ${at.toFixed(1)}` }),
          svgElement("text", { x: width - right + 17, y: at + 4 }, `sentence ${sentence}`),
        );
      }),
    );
    box.replaceChildren(drawing);
    updateReadout();
  }

  return {
    root,
    /** @param {ContextWord} next */
    show(next) {
      word = next;
      width ||= box.clientWidth;
      if (width > 0) drawLines();
    },
    /** @param {number} next */
    state(next) {
      chosen = next;
      updateReadout();
    },
    resize() {
      if (box.clientWidth === 0 || box.clientWidth === width) return;
      width = box.clientWidth;
      drawLines();
    },
  };
}

/** @param {ContextWord} word */
function chartDescription(word) {
  const values = word.cosines.map(({ sentence, cosine }) => {
    const [first = 1, last = 1] = [cosine[0], cosine.at(-1)];
    return `in sentence ${sentence} from ${first.toFixed(3)} at the input to ${last.toFixed(3)} after the last layer`;
  });
  return `Cosine of "${visible(word.word)}" with its vector in sentence ${firstSentence(word)}: ${values.join("; ")}.`;
}
