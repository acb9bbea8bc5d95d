/** What is drawn over the cells of a map: where rows are missing, and which cells are meant. */

import { headColour } from "../core/colour.js";
import { BAR_GAP, cellsRect } from "./layout.js";

/** @typedef {import("./layout.js").Layout} Layout */
/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {import("./paint.js").Palette} Palette */
/** @typedef {import("./paint.js").Context2D} Context2D */

/**
 * Hatch the rows that the page does not have.
 * @param {Context2D} ctx
 * @param {Layout} layout
 * @param {(query: number) => boolean} known
 * @param {string} colour
 * @returns {number} how many rows
 */
export function paintHatching(ctx, layout, known, colour) {
  const [top, bottom, left, right] = layout.viewport;
  let missing = 0;
  ctx.save();
  ctx.beginPath();
  for (let query = top; query < bottom; query++) {
    if (known(query)) continue;
    missing++;
    const box = cellsRect(layout, [query, query + 1, left, right], 0);
    ctx.rect(box.x, box.y, box.w, box.h);
  }
  if (missing) {
    ctx.clip();
    ctx.beginPath();
    for (let from = -layout.tall; from < layout.wide; from += 8) {
      ctx.moveTo(layout.x + from, layout.y + layout.tall);
      ctx.lineTo(layout.x + from + layout.tall, layout.y);
    }
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1;
    ctx.stroke();
  }
  ctx.restore();
  return missing;
}

/**
 * A frame around some cells, and stripes that lead from it to the names.
 * @param {Context2D} ctx
 * @param {Layout} layout
 * @param {Viewport} cells
 * @param {Palette} palette
 * @param {boolean} leading
 */
export function paintFrame(ctx, layout, cells, palette, leading) {
  const { x, y, wide, tall, viewport } = layout;
  const [top, bottom, left, right] = viewport;
  if (cells[1] <= top || cells[0] >= bottom || cells[3] <= left || cells[2] >= right) return;
  const box = cellsRect(layout, cells, leading ? 3 : 7);
  ctx.save();
  if (leading) {
    ctx.globalAlpha = 0.22;
    ctx.fillStyle = palette.accent;
    const [from, to] = [Math.max(y, box.y), Math.min(y + tall, box.y + box.h)];
    const [start, end] = [Math.max(x, box.x), Math.min(x + wide, box.x + box.w)];
    ctx.fillRect(0, from, x - 2, to - from);
    ctx.fillRect(x + wide + BAR_GAP, from, layout.side, to - from);
    ctx.fillRect(start, 0, end - start, y - 2);
    ctx.fillRect(start, y + tall + BAR_GAP, end - start, layout.foot);
    ctx.globalAlpha = 1;
  }
  ctx.beginPath();
  ctx.rect(x - 2, y - 2, wide + 4, tall + 4);
  ctx.clip();
  ctx.lineWidth = 4;
  ctx.strokeStyle = palette.paper;
  ctx.strokeRect(box.x, box.y, box.w, box.h);
  ctx.lineWidth = 2;
  ctx.strokeStyle = leading ? palette.ink : headColour(1);
  ctx.strokeRect(box.x, box.y, box.w, box.h);
  ctx.restore();
}
