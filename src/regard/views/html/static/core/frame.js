/** A page inside a frame: of a notebook, or of a site. It tells its parent how tall it is. */

/**
 * What the page sends to its parent; static/notebook/frame.js reads it.
 * @typedef {{regard: "height", height: number}} HeightMessage
 */

/** Whether the page is in a frame, whose height follows the page's: no height may follow the frame's there. */
export function isFramed() {
  return parent !== window;
}

/**
 * Reports the height of the page at every change, and when the parent asks. A page in a window of its own has no parent.
 * @param {HTMLElement} body
 */
export function reportHeight(body) {
  if (!isFramed()) return;
  document.documentElement.dataset.framed = "yes";
  const report = () => {
    if (innerWidth === 0) return; // not laid out yet: every word would have a line of its own
    const height = Math.ceil(body.getBoundingClientRect().bottom + scrollY);
    // The parent of a sandboxed frame has no origin that could be named; a height is no secret.
    parent.postMessage(/** @type {HeightMessage} */ ({ regard: "height", height }), "*");
  };
  report(); // browsers draw no frame that is out of sight, and tell it of no change of its size
  new ResizeObserver(report).observe(body);
  addEventListener("message", (event) => {
    if (event.source === parent && event.data?.regard === "height?") report();
  });
}
