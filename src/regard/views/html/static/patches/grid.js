/** The grid of an image's patches, and their tokens. */

/** @typedef {import("../core/data.js").Image} Image */

/**
 * The token of a patch.
 * @param {Image} image
 * @param {number} row
 * @param {number} column
 */
export function tokenOfPatch(image, row, column) {
  return image.first_patch + row * image.columns + column;
}

/**
 * The row and column of a token's patch; null for a token that is no patch.
 * @param {Image} image
 * @param {number} index
 */
export function patchOfToken({ rows, columns, first_patch: first }, index) {
  const patch = index - first;
  if (patch < 0 || patch >= rows * columns) return null;
  return { row: Math.floor(patch / columns), column: patch % columns };
}

/**
 * The patch that one reaches from another by an arrow key; the same at the edges.
 * @param {Image} image
 * @param {number} index
 * @param {string} key of the keyboard
 * @returns {number | null} null for other keys
 */
export function nextPatch(image, index, key) {
  const { rows, columns, first_patch: first } = image;
  const { row, column } = patchOfToken(image, index) ?? { row: 0, column: 0 };
  const end = key === "End" ? (columns - 1) : column;
  /** @type {Record<string, [number, number]>} */
  const reached = {
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    Home: [row, 0],
    End: [row, end],
  };
  const to = reached[key];
  if (!to) return null;
  if (index < first || index >= first + rows * columns) return first;
  return tokenOfPatch(image, Math.min(rows - 1, Math.max(0, to[0])), Math.min(columns - 1, Math.max(0, to[1])));
}

/**
 * What a patch is called: patch at row 2, column 5. Other tokens are called by their text.
 * @param {Image} image
 * @param {number} index
 * @param {string[]} tokens
 */
export function patchName(image, index, tokens) {
  const place = patchOfToken(image, index);
  return place ? `patch at row ${place.row}, column ${place.column}` : `token ${index} '${tokens[index] ?? ""}'`;
}

/**
 * How strongly each patch is painted: its weight relative to the largest patch's, and how much the others have.
 * @param {ArrayLike<number>} weights
 * @param {Image} image
 */
export function patchShares(weights, { rows, columns, first_patch: first }) {
  const shares = Float64Array.from({ length: rows * columns }, (_, i) => Number(weights[first + i]) || 0);
  const most = shares.reduce((a, b) => Math.max(a, b), 0);
  const sum = shares.reduce((a, b) => a + b, 0);
  return { shares, most, sum };
}
