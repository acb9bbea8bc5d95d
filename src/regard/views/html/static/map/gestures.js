/** How a map is moved: wheel, mouse, fingers and keys. */

/** @typedef {{x: number, y: number}} Point in CSS pixels of the drawing */

/**
 * What is done with the map.
 * @typedef {object} MapActions
 * @property {(spot: Point | null, factor: number) => boolean} zoom at once; null: about the cursor. Whether anything changed
 * @property {() => void} hold the area is remembered, and dragged from there
 * @property {(start: Point, now: Point, factor: number) => void} drag what was at `start` is now at `now`, and nearer if the factor is below 1
 * @property {(spot: Point | null) => void} hover
 * @property {(spot: Point) => void} choose
 * @property {(down: number, across: number, event: KeyboardEvent) => void} step
 * @property {(key: string) => boolean} press another key; whether it meant something
 */

/** Pixels that a finger or a mouse may move and still mean a click. */
const CLICK_TOLERANCE = 5;

/** A wheel turns so far before the map follows: fingers on a pad turn it in many small steps. */
const WHEEL_STEP = 24;

/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @param {HTMLElement} surface
 * @param {MapActions} moves
 */
export function attachGestures(surface, moves) {
  /** @type {Map<number, Point>} */
  const fingers = new Map();
  /** @type {{spot: Point, spread: number, moved: boolean}} */
  let start = { spot: { x: 0, y: 0 }, spread: 0, moved: false };
  let wheelPixels = 0;

  /** @param {MouseEvent} event */
  const spotOf = (event) => {
    const box = surface.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  const centre = () => {
    const spots = [...fingers.values()];
    const [first = { x: 0, y: 0 }, second = first] = spots;
    return { spot: { x: (first.x + second.x) / 2, y: (first.y + second.y) / 2 }, spread: Math.hypot(first.x - second.x, first.y - second.y) };
  };

  const hold = (/** @type {boolean} */ moved) => {
    start = { ...centre(), moved };
    moves.hold();
  };

  /** @param {PointerEvent} event */
  const down = (event) => {
    if (event.button > 0) return;
    fingers.set(event.pointerId, spotOf(event));
    surface.setPointerCapture(event.pointerId);
    hold(fingers.size > 1);
  };

  /** @param {PointerEvent} event */
  const move = (event) => {
    const spot = spotOf(event);
    if (!fingers.has(event.pointerId)) {
      if (event.pointerType !== "touch") moves.hover(spot);
      return;
    }
    fingers.set(event.pointerId, spot);
    const now = centre();
    if (!start.moved && Math.hypot(now.spot.x - start.spot.x, now.spot.y - start.spot.y) < CLICK_TOLERANCE) return;
    start.moved = true;
    moves.drag(start.spot, now.spot, start.spread > 0 && now.spread > 0 ? start.spread / now.spread : 1);
  };

  /** @param {PointerEvent} event */
  const up = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (fingers.size > 0) hold(true);
    else if (!start.moved && event.type === "pointerup") moves.choose(spotOf(event));
  };

  /** @param {WheelEvent} event */
  const wheel = (event) => {
    const pixels = event.deltaY * (event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1) * (event.ctrlKey ? 6 : 1);
    wheelPixels = Math.sign(pixels) === Math.sign(wheelPixels) ? wheelPixels + pixels : pixels;
    const isStep = Math.abs(wheelPixels) >= WHEEL_STEP;
    // Where the map cannot follow, the page scrolls on.
    if (!isStep || moves.zoom(spotOf(event), Math.exp(Math.max(-1, Math.min(1, wheelPixels * 0.0025))))) event.preventDefault();
    if (isStep) wheelPixels = 0;
  };

  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    if (arrow) moves.step(arrow[0], arrow[1], event);
    else if (event.key === "+" || event.key === "=") moves.zoom(null, 1 / 1.5);
    else if (event.key === "-" || event.key === "_") moves.zoom(null, 1.5);
    else if (!moves.press(event.key)) return;
    event.preventDefault();
  };

  surface.addEventListener("pointerdown", down);
  surface.addEventListener("pointermove", move);
  surface.addEventListener("pointerup", up);
  surface.addEventListener("pointercancel", up);
  surface.addEventListener("pointerleave", () => moves.hover(null));
  surface.addEventListener("wheel", wheel, { passive: false });
  surface.addEventListener("keydown", key);
}
