/** Small bars beside numbers. The number says it all; the bar is for the eye, and hidden from screen readers. */

import { element } from "../core/dom.js";

/**
 * A bar for a share, 0 to 1.
 * @param {number} share
 */
export function shareBar(share) {
  const bar = element("span", { class: "share-bar", "aria-hidden": "true" }, element("span"));
  setShare(bar, share);
  return bar;
}

/**
 * @param {HTMLElement} bar
 * @param {number} share
 */
export function setShare(bar, share) {
  const inner = /** @type {HTMLElement} */ (bar.firstElementChild);
  inner.style.width = `${Math.min(1, Math.max(0, share)) * 100}%`;
}

/**
 * A bar from the middle: to the right for more than 0, to the left and hatched for less.
 * @param {number} share -1 to 1
 */
export function signedBar(share) {
  const bar = element("span", { class: "signed-bar", "aria-hidden": "true" }, element("span"));
  setSigned(bar, share);
  return bar;
}

/**
 * @param {HTMLElement} bar
 * @param {number} share
 */
export function setSigned(bar, share) {
  const inner = /** @type {HTMLElement} */ (bar.firstElementChild);
  const size = Math.min(1, Math.abs(share)) * 50;
  inner.style.width = `${size}%`;
  inner.style.left = `${share < 0 ? 50 - size : 50}%`;
  inner.classList.toggle("less", share < 0);
}
