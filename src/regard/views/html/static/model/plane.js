/** The plane in which some vectors differ most: their first two principal components. */

import { dotProduct, largestEigenpairs } from "./eigen.js";

/** @typedef {[number, number]} Point */

/**
 * In each layer the vectors' points in the plane in which they differ most, and the share of their variance that it
 * shows.
 *
 * The sign of a principal component is free. In each layer after the first it is the one that moves the points least.
 * @param {Float64Array[][]} layers of each its vectors, at least two
 * @returns {{planes: Point[][], explained: number[]}}
 */
export function principalPlanes(layers) {
  /** @type {Point[][]} */
  const planes = [];
  const explained = layers.map((vectors) => {
    const gram = gramMatrix(vectors);
    const { values, vectors: directions } = largestEigenpairs(gram, 2);
    const sizes = values.map((value) => Math.sqrt(Math.max(0, value)));
    const plane = vectors.map((_, i) => /** @type {Point} */ ([0, 1].map((axis) => directions[axis][i] * sizes[axis])));
    const signs = [0, 1].map((axis) => (movesLeast(plane, planes.at(-1) ?? plane, axis) ? 1 : -1));
    planes.push(plane.map(([x, y]) => [x * signs[0], y * signs[1]]));
    const variance = gram.reduce((sum, row, i) => sum + row[i], 0);
    return variance > 0 ? (sizes[0] ** 2 + sizes[1] ** 2) / variance : 0;
  });
  return { planes, explained };
}

/**
 * Whether an axis of a plane moves the points less as it is than turned round.
 * @param {Point[]} plane
 * @param {Point[]} previous
 * @param {number} axis
 */
function movesLeast(plane, previous, axis) {
  return plane.reduce((sum, point, i) => sum + point[axis] * previous[i][axis], 0) >= 0;
}

/**
 * The dot products of the vectors after their mean is subtracted.
 * @param {Float64Array[]} vectors
 * @returns {Float64Array[]}
 */
function gramMatrix(vectors) {
  const mean = vectors[0].map((_, i) => vectors.reduce((sum, vector) => sum + vector[i], 0) / vectors.length);
  const centred = vectors.map((vector) => vector.map((x, i) => x - mean[i]));
  const gram = vectors.map(() => new Float64Array(vectors.length));
  centred.forEach((a, row) => {
    for (let column = 0; column <= row; column++) {
      gram[row][column] = gram[column][row] = dotProduct(a, centred[column]);
    }
  });
  return gram;
}
