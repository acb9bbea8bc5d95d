/** The small picture of a head, painted when it is about to be seen. */

import { paintRaster } from "../map/raster.js";

/** @typedef {import("../core/data.js").Data} Data */

/** The smallest width over height of a thumbnail, and one over the largest. */
const MIN_ASPECT = 0.5;

/**
 * An image and not a canvas: Chromium makes a layer of each canvas, and a thousand of them are slow to scroll.
 * @param {HTMLImageElement} image
 * @param {Data} data
 * @param {number} attention
 * @param {number} head
 * @param {boolean} dark
 */
export function paintThumbnail(image, data, attention, head, dark) {
  const canvas = document.createElement("canvas");
  paintRaster(canvas, data.pooledMap(attention, head), data.headFacts(attention, head).max_pooled, dark);
  image.src = canvas.toDataURL();
}

/**
 * Width over height of a map's picture.
 * @param {import("../core/data.js").Attention} attention
 */
export function aspectRatio({ queries, keys }) {
  return Math.min(1 / MIN_ASPECT, Math.max(MIN_ASPECT, keys / queries));
}

/** Milliseconds of painting after which the next frame comes first: a page of many heads must not hold the keyboard up. */
const PAINTING = 12;

/**
 * Calls once for each picture, when it comes near the window.
 * @param {(image: HTMLImageElement) => void} paint
 */
export function paintWhenVisible(paint) {
  /** @type {HTMLImageElement[]} */
  let waiting = [];
  let frame = 0;
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        waiting.push(/** @type {HTMLImageElement} */ (target));
      }
      paintSome();
    },
    { rootMargin: "600px" },
  );

  function paintSome() {
    cancelAnimationFrame(frame);
    const begin = performance.now();
    while (waiting.length > 0 && performance.now() - begin < PAINTING) paint(/** @type {HTMLImageElement} */ (waiting.shift()));
    if (waiting.length > 0) frame = requestAnimationFrame(paintSome);
  }

  /**
   * Starts with some, or all over again.
   * @param {Iterable<HTMLImageElement>} images
   */
  return (images) => {
    observer.disconnect();
    waiting = [];
    for (const image of images) observer.observe(image);
  };
}
