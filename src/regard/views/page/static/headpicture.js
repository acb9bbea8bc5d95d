/** The small picture of a head, painted when it is about to be seen. */

import { isDark } from "./colour.js";
import { paintRaster } from "./raster.js";

/** @typedef {import("./data.js").Data} Data */

/** So wide pictures may be for their height, and so narrow. */
const SLIMMEST = 0.5;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Data} data
 * @param {number} attention
 * @param {number} head
 * @param {boolean} [dark]
 */
export function paintHead(canvas, data, attention, head, dark = isDark()) {
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
 * Calls once for each element, when it comes near the window.
 * @param {(element: Element) => void} call
 */
export function whenNear(call) {
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        call(target);
      }
    },
    { rootMargin: "300px" },
  );
  return observer;
}
