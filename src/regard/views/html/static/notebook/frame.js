/**
 * What runs beside the frames of a notebook's outputs or of a site, after each of them: it shows the page where there
 * was a picture, makes each frame as tall as its page, and gives a frame without a page that of another output.
 *
 * A classic script: notebooks run what stands in an output again and again, in one document. Every run looks after
 * every frame, because a frame may wait for the page of an output that the notebook draws later.
 */
(() => {
  const MAX_HEIGHT = 20_000;
  const boxes = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".regard-frame")]);
  const frameOf = (/** @type {HTMLElement} */ box) => box.querySelector("iframe");
  const shared = /** @type {{regardPages?: Map<string, [string, string]>}} */ (/** @type {unknown} */ (window));

  /** @param {MessageEvent} event */
  function resize(event) {
    const height = event.data?.regard === "height" ? event.data.height : null;
    if (!Number.isFinite(height) || height <= 0) return;
    const box = boxes().find((each) => frameOf(each)?.contentWindow === event.source);
    const frame = box && frameOf(box);
    if (!frame) return;
    frame.style.cssText = `width: 100%; border: 0; display: block; height: ${Math.min(height, MAX_HEIGHT)}px`;
    box.querySelectorAll(".regard-static, .regard-note").forEach((each) => each.setAttribute("style", "display: none"));
    box.dataset.live = "yes";
  }

  if (!shared.regardPages) {
    shared.regardPages = new Map();
    addEventListener("message", resize);
  }
  const pages = shared.regardPages;
  const attributes = ["srcdoc", "src"];
  for (const box of boxes()) {
    const frame = frameOf(box);
    const attribute = attributes.find((name) => frame?.hasAttribute(name));
    if (frame && attribute && box.dataset.page) pages.set(box.dataset.page, [attribute, String(frame.getAttribute(attribute))]);
  }
  for (const box of boxes()) {
    const frame = frameOf(box);
    const page = pages.get(box.dataset.page ?? "");
    if (!frame || !page || box.dataset.live) continue;
    // The picture stays until the page says how tall it is. Meanwhile the frame has its width, and is not seen.
    frame.style.cssText = "width: 100%; height: 760px; border: 0; position: absolute; left: 0; top: 0; opacity: 0; pointer-events: none";
    if (!attributes.some((name) => frame.hasAttribute(name))) frame.setAttribute(...page);
    frame.contentWindow?.postMessage({ regard: "height?" }, "*");
  }
})();
