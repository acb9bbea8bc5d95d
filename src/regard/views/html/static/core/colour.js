/** Colours that tell apart what has to be told apart, by everybody, in light and dark, and on paper. */

/**
 * Colours for several heads, after Okabe and Ito's palette for all kinds of colour vision.
 * @see https://jfly.uni-koeln.de/color/
 */
export const HEAD_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f7700", "#777777"];

/** From nothing to all: luminance falls evenly, so that it reads in grey too. Dark pages read it the other way round. */
const LIGHT_RAMP = [
  [255, 255, 255],
  [205, 224, 241],
  [137, 183, 220],
  [68, 132, 189],
  [24, 80, 142],
  [8, 29, 74],
];

const DARK_RAMP = [
  [22, 25, 32],
  [25, 50, 92],
  [29, 92, 150],
  [63, 147, 197],
  [147, 202, 226],
  [246, 251, 255],
];

/** Whether the page is dark now. */
export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * The colour of a share, [red, green, blue].
 * @param {number} share 0 to 1; NaN is what is not known
 * @param {boolean} dark
 * @returns {[number, number, number]}
 */
export function rampColour(share, dark) {
  if (Number.isNaN(share)) return dark ? [70, 60, 60] : [226, 220, 214];
  const ramp = dark ? DARK_RAMP : LIGHT_RAMP;
  const at = Math.min(1, Math.max(0, share)) * (ramp.length - 1);
  const index = Math.min(ramp.length - 2, Math.floor(at));
  const [low, high] = [ramp[index], ramp[index + 1]];
  const mixed = [0, 1, 2].map((i) => Math.round(Number(low?.[i]) + (Number(high?.[i]) - Number(low?.[i])) * (at - index)));
  return /** @type {[number, number, number]} */ (mixed);
}

/**
 * The colour of one of several heads.
 * @param {number} index
 */
export function headColour(index) {
  return /** @type {string} */ (HEAD_COLOURS[index % HEAD_COLOURS.length]);
}
