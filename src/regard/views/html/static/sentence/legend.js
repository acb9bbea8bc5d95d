/** Which heads are drawn together, each with its colour and its pattern. */

import { svgElement, element } from "../core/dom.js";
import { headColour } from "../core/colour.js";
import { headDash } from "./model.js";

/**
 * A short piece of a head's line.
 * @param {string} colour
 * @param {number[]} dash
 */
export function swatch(colour, dash) {
  const line = svgElement("line", { x1: 0, y1: 5, x2: 28, y2: 5, stroke: colour, "stroke-width": 4, "stroke-dasharray": dash.join(" ") || null });
  return svgElement("svg", { class: "swatch", width: 28, height: 10, viewBox: "0 0 28 10", "aria-hidden": "true" }, line);
}

/**
 * Buttons for the heads of an attention; the first of those drawn is the one that is chosen above.
 * @param {import("../page.js").Page} page
 */
export function headLegend({ data, store }) {
  const buttons = element("div", { class: "headbuttons" });
  const root = element("fieldset", { class: "legend" }, element("legend", {}, "Heads that are drawn"), buttons);

  /** @param {import("../core/store.js").State} state */
  function show({ attention, head, extraHeads }) {
    const shownHeads = [head, ...extraHeads];
    const focusedHead = document.activeElement instanceof HTMLElement && buttons.contains(document.activeElement) ? document.activeElement.dataset.head : null;
    buttons.replaceChildren(
      ...data.attention(attention).heads.map(({ number, payload }, place) => {
        const at = shownHeads.indexOf(place);
        const label = `head ${number}${at === 0 ? ", chosen above" : ""}${payload ? "" : ", a picture only"}`;
        const onclick = () => {
          const { extraHeads: now, head: first } = store.state;
          if (place === first) store.set(now.length ? { head: Number(now[0]), extraHeads: now.slice(1) } : {});
          else store.set({ extraHeads: now.includes(place) ? now.filter((each) => each !== place) : [...now, place] });
        };
        return element(
          "button",
          { type: "button", "data-head": place, "aria-pressed": String(at >= 0), "aria-label": label, title: label, disabled: !payload && at < 0, onclick },
          at >= 0 && swatch(headColour(at), headDash(at)),
          String(number),
        );
      }),
    );
    if (focusedHead) /** @type {HTMLElement | null} */ (buttons.querySelector(`[data-head="${focusedHead}"]`))?.focus();
  }
  return { root, show };
}
