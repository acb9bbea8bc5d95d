/** The grid of an image's patches, and their tokens. */

/** @typedef {import("../core/data.js").PatchGrid} PatchGrid */

/**
 * The token of a patch.
 * @param {PatchGrid} grid
 * @param {number} row
 * @param {number} column
 */
export function tokenOfPatch({ first, stride }, row, column) {
  return first + row * stride + column;
}

/**
 * The row and column of a token's patch; null for a token that is no patch.
 * @param {PatchGrid} grid
 * @param {number} index
 */
export function patchOfToken({ first, rows, columns, stride }, index) {
  const [row, column] = [Math.floor((index - first) / stride), (index - first) % stride];
  return index < first || row >= rows || column >= columns ? null : { row, column };
}

/**
 * The patch that one reaches from a token by an arrow key; the same at the edges.
 * @param {PatchGrid} grid
 * @param {number | null} index
 * @param {string} key of the keyboard
 * @returns {number | null} null for other keys
 */
export function nextPatch(grid, index, key) {
  const place = index === null ? null : patchOfToken(grid, index);
  const { row, column } = place ?? { row: 0, column: 0 };
  /** @type {Record<string, [number, number]>} */
  const reached = {
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    Home: [row, 0],
    End: [row, grid.columns - 1],
  };
  const to = reached[key];
  if (!to) return null;
  if (!place) return grid.first;
  return tokenOfPatch(grid, Math.min(grid.rows - 1, Math.max(0, to[0])), Math.min(grid.columns - 1, Math.max(0, to[1])));
}

/**
 * What a token is called: patch at row 2, column 5. Tokens that are no patch are called by their text.
 * @param {PatchGrid | null} grid
 * @param {number} index
 * @param {string[]} tokens
 */
export function patchName(grid, index, tokens) {
  const place = grid && patchOfToken(grid, index);
  return place ? `patch at row ${place.row}, column ${place.column}` : `token ${index} '${tokens[index] ?? ""}'`;
}

/**
 * How strongly each patch is painted: its weight relative to the largest patch's, and how much all have.
 * @param {ArrayLike<number>} weights
 * @param {PatchGrid} grid
 */
export function patchShares(weights, grid) {
  const shares = Float64Array.from({ length: grid.rows * grid.columns }, (_, i) => Number(weights[tokenOfPatch(grid, Math.floor(i / grid.columns), i % grid.columns)]) || 0);
  const most = shares.reduce((a, b) => Math.max(a, b), 0);
  const sum = shares.reduce((a, b) => a + b, 0);
  return { shares, most, sum };
}
