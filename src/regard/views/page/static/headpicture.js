/** The small picture of a head, painted when it is about to be seen. */

import { paintRaster } from "./raster.js";

/** @typedef {import("./data.js").Data} Data */

/** So wide pictures may be for their height, and so narrow. */
const SLIMMEST = 0.5;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Data} data
 * @param {number} attention
 * @param {number} head
 * @param {boolean} dark
 */
export function paintHead(canvas, data, attention, head, dark) {
  paintRaster(canvas, data.picture(attention, head), data.about(attention, head).most, dark);
}

/**
 * Width over height of a map's picture.
 * @param {import("./data.js").Attention} attention
 */
export function pictureShape({ queries, keys }) {
  return Math.min(1 / SLIMMEST, Math.max(SLIMMEST, keys / queries));
}

/**
 * Paints canvases when they come near the window, and hides those that are far: Chromium makes a layer of each, and a
 * thousand of them are slow to scroll.
 * @param {(canvas: HTMLCanvasElement) => void} paint
 */
export function whenNear(paint) {
  /** @type {WeakSet<Element>} */
  let painted = new WeakSet();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        target.classList.toggle("far", !isIntersecting);
        if (!isIntersecting || painted.has(target)) continue;
        painted.add(target);
        paint(/** @type {HTMLCanvasElement} */ (target));
      }
    },
    { rootMargin: "200px" },
  );

  /**
   * Starts with some, or all over again.
   * @param {Iterable<HTMLCanvasElement>} canvases
   */
  return (canvases) => {
    observer.disconnect();
    painted = new WeakSet();
    for (const canvas of canvases) observer.observe(canvas);
  };
}
