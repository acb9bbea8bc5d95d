/**
 * GELU: x times the normal distribution function (Hendrycks and Gimpel 2016), by a table of that function and of its
 * derivative, and cubic interpolation between. The error is below 1e-8, of which 6e-9 are the ends that the table leaves out.
 */

/** Beyond it the function is 0 or 1. */
const RANGE = 6;

const STEPS_PER_UNIT = 128;

const LAST = 2 * RANGE * STEPS_PER_UNIT;

/** For each step the value, and the derivative times the width of a step. */
const TABLE = Float64Array.from({ length: 2 * (LAST + 1) }, (_, i) => {
  const x = (i >> 1) / STEPS_PER_UNIT - RANGE;
  return i % 2 ? density(x) / STEPS_PER_UNIT : distribution(x);
});

/**
 * In place.
 * @param {Float32Array} numbers
 * @param {number} from
 * @param {number} to behind the last
 */
export function gelu(numbers, from, to) {
  for (let i = from; i < to; i++) {
    const x = /** @type {number} */ (numbers[i]);
    if (x >= RANGE) continue;
    if (x <= -RANGE) numbers[i] = 0;
    else {
      const place = (x + RANGE) * STEPS_PER_UNIT;
      const step = place | 0;
      const t = place - step;
      const left = /** @type {number} */ (TABLE[2 * step]);
      const slope = /** @type {number} */ (TABLE[2 * step + 1]);
      const rise = /** @type {number} */ (TABLE[2 * step + 2]) - left;
      const end = /** @type {number} */ (TABLE[2 * step + 3]);
      numbers[i] = x * (left + t * (slope + t * (3 * rise - 2 * slope - end + t * (slope + end - 2 * rise))));
    }
  }
}

/** @param {number} x */
function density(x) {
  return Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);
}

/**
 * 1/2 + density * (x + x^3/3 + x^5/(3*5) + ...) (Abramowitz and Stegun, 26.2.11).
 * @param {number} x
 */
function distribution(x) {
  let sum = x;
  let term = x;
  for (let odd = 3; Math.abs(term) > 1e-17 * Math.abs(sum); odd += 2) {
    term *= (x * x) / odd;
    sum += term;
  }
  return 0.5 + density(x) * sum;
}
