/** What is picked out of many: the largest weights, the strongest lines, the nearest rows. */

/** @typedef {import("./model.js").Line} Line */
/** @typedef {[number, number]} Range the first, and the one behind the last */

/**
 * The largest weights, largest first; of equal ones the first. Weights of 0, and what is not known, do not count.
 * @param {ArrayLike<number>} weights
 * @param {number} most how many
 */
export function topWeights(weights, most) {
  /** @type {{index: number, weight: number}[]} */
  const found = [];
  for (let index = 0; index < weights.length; index++) {
    const weight = Number(weights[index]);
    if (!(weight > 0) || (found.length === most && weight <= Number(found.at(-1)?.weight))) continue;
    let at = found.length;
    while (at > 0 && Number(found[at - 1]?.weight) < weight) at--;
    found.splice(at, 0, { index, weight });
    if (found.length > most) found.pop();
  }
  return found;
}

/**
 * The lines that are drawn when there are too many, strongest last; and how many are not.
 * @param {Line[]} found
 * @param {number} most
 */
export function topLines(found, most) {
  const sorted = found.sort((a, b) => a.weight - b.weight);
  const left = Math.max(0, sorted.length - most);
  return { lines: sorted.slice(left), left };
}

/**
 * The part of a range, of so many at most, that lies nearest to one of its members.
 * @param {Range} range
 * @param {number} centre
 * @param {number} most
 * @returns {Range}
 */
export function nearestRange([from, to], centre, most) {
  if (to - from <= most) return [from, to];
  const start = Math.min(Math.max(from, centre - (most >> 1)), to - most);
  return [start, start + most];
}
