/** Selection: the largest weights, the strongest lines, the nearest rows. */

/** @typedef {import("./model.js").Line} Line */
/** @typedef {[number, number]} Range the first, and the one behind the last */

/**
 * The largest weights, largest first; of equal weights the first. Weights of 0 and NaN do not count.
 * @param {ArrayLike<number>} weights
 * @param {number} count how many
 */
export function topWeights(weights, count) {
  /** @type {{index: number, weight: number}[]} */
  const top = [];
  for (let index = 0; index < weights.length; index++) {
    const weight = Number(weights[index]);
    if (!(weight > 0) || (top.length === count && weight <= Number(top.at(-1)?.weight))) continue;
    let at = top.length;
    while (at > 0 && Number(top[at - 1]?.weight) < weight) at--;
    top.splice(at, 0, { index, weight });
    if (top.length > count) top.pop();
  }
  return top;
}

/**
 * The lines that are drawn when there are too many, strongest last; and how many are not.
 * @param {Line[]} top
 * @param {number} count
 */
export function topLines(top, count) {
  const sorted = top.sort((a, b) => a.weight - b.weight);
  const left = Math.max(0, sorted.length - count);
  return { lines: sorted.slice(left), left };
}

/**
 * The part of a range, at most `count` long, around one of its members.
 * @param {Range} range
 * @param {number} centre
 * @param {number} count
 * @returns {Range}
 */
export function nearestRange([from, to], centre, count) {
  if (to - from <= count) return [from, to];
  const start = Math.min(Math.max(from, centre - (count >> 1)), to - count);
  return [start, start + count];
}
