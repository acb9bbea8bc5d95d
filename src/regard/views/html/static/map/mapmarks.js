/** What is drawn over the cells of a map: where rows are missing, and which cells are meant. */

import { headColour } from "../core/colour.js";
import { BAR_GAP, boxOf } from "./layout.js";

/** @typedef {import("./layout.js").Layout} Layout */
/** @typedef {import("./area.js").Area} Area */
/** @typedef {import("./mappaint.js").Inks} Inks */
/** @typedef {import("./mappaint.js").Pen} Pen */

/**
 * Lines across the rows that are not known.
 * @param {Pen} pen
 * @param {Layout} layout
 * @param {(query: number) => boolean} known
 * @param {string} colour
 * @returns {number} how many rows
 */
export function paintHatching(pen, layout, known, colour) {
  const [top, bottom, left, right] = layout.area;
  let missing = 0;
  pen.save();
  pen.beginPath();
  for (let query = top; query < bottom; query++) {
    if (known(query)) continue;
    missing++;
    const box = boxOf(layout, [query, query + 1, left, right], 0);
    pen.rect(box.x, box.y, box.w, box.h);
  }
  if (missing) {
    pen.clip();
    pen.beginPath();
    for (let from = -layout.tall; from < layout.wide; from += 8) {
      pen.moveTo(layout.x + from, layout.y + layout.tall);
      pen.lineTo(layout.x + from + layout.tall, layout.y);
    }
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.stroke();
  }
  pen.restore();
  return missing;
}

/**
 * A frame around some cells, and stripes that lead from it to the names.
 * @param {Pen} pen
 * @param {Layout} layout
 * @param {Area} cells
 * @param {Inks} inks
 * @param {boolean} leading
 */
export function paintFrame(pen, layout, cells, inks, leading) {
  const { x, y, wide, tall, area } = layout;
  const [top, bottom, left, right] = area;
  if (cells[1] <= top || cells[0] >= bottom || cells[3] <= left || cells[2] >= right) return;
  const box = boxOf(layout, cells, leading ? 3 : 7);
  pen.save();
  if (leading) {
    pen.globalAlpha = 0.22;
    pen.fillStyle = inks.accent;
    const [from, to] = [Math.max(y, box.y), Math.min(y + tall, box.y + box.h)];
    const [start, end] = [Math.max(x, box.x), Math.min(x + wide, box.x + box.w)];
    pen.fillRect(0, from, x - 2, to - from);
    pen.fillRect(x + wide + BAR_GAP, from, layout.side, to - from);
    pen.fillRect(start, 0, end - start, y - 2);
    pen.fillRect(start, y + tall + BAR_GAP, end - start, layout.foot);
    pen.globalAlpha = 1;
  }
  pen.beginPath();
  pen.rect(x - 2, y - 2, wide + 4, tall + 4);
  pen.clip();
  pen.lineWidth = 4;
  pen.strokeStyle = inks.paper;
  pen.strokeRect(box.x, box.y, box.w, box.h);
  pen.lineWidth = 2;
  pen.strokeStyle = leading ? inks.ink : headColour(1);
  pen.strokeRect(box.x, box.y, box.w, box.h);
  pen.restore();
}
