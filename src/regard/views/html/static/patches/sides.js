/** What the image shows of an attention: the keys of one query, or the queries of one key. */

import { patchOfToken, tokenOfPatch } from "./grid.js";

/** @typedef {import("../core/data.js").Data} Data */
/** @typedef {import("../core/data.js").PatchGrid} PatchGrid */
/** @typedef {import("../core/store.js").State} State */

/**
 * One side of an attention lies over the image, and one token of the other is chosen.
 * @typedef {object} Sides
 * @property {"keys" | "queries"} painted the side that lies over the image
 * @property {PatchGrid} grid its patches
 * @property {string[]} tokens its tokens
 * @property {number} chosen the token of the other side
 * @property {PatchGrid | null} chosenGrid the patches of the other side, where they are those of the painted one
 * @property {string[]} chosenTokens the tokens of the other side
 * @property {number | null} marked the token of the painted side that is marked
 * @property {Float64Array | null} weights between the chosen token and each of the painted side; null where they are not in the page
 */

/**
 * The keys lie over the image where they are patches; the queries, where only they are, as in a UNet that reads words.
 * @param {Data} data
 * @param {State} state
 * @returns {Sides | null} null where neither is known to be patches
 */
export function sidesOf(data, { attention, head, query, key }) {
  const { query_patches: queryGrid, key_patches: keyGrid } = data.attention(attention);
  const { queries, keys } = data.tokens(attention);
  if (keyGrid) {
    const isAlike = queryGrid && queryGrid.rows === keyGrid.rows && queryGrid.columns === keyGrid.columns;
    const weights = data.row(attention, head, query)?.weights ?? null;
    return { painted: "keys", grid: keyGrid, tokens: keys, chosen: query, chosenGrid: isAlike ? queryGrid : null, chosenTokens: queries, marked: key, weights };
  }
  if (!queryGrid) return null;
  const chosen = key ?? 0;
  return { painted: "queries", grid: queryGrid, tokens: queries, chosen, chosenGrid: null, chosenTokens: keys, marked: query, weights: data.column(attention, head, chosen) };
}

/**
 * What changes when a patch of the painted side is chosen: the query, where patches are queries; else the key.
 * @param {Sides} sides
 * @param {number} index of the token
 * @returns {Partial<State>}
 */
export function choice({ painted, grid, chosenGrid }, index) {
  if (painted === "queries") return { query: index };
  const place = patchOfToken(grid, index);
  return chosenGrid && place ? { query: tokenOfPatch(chosenGrid, place.row, place.column) } : { key: index };
}

/**
 * The token of the painted side that a solid frame marks, and that the arrow keys start from.
 * @param {Sides} sides
 */
export function framed({ painted, grid, chosen, chosenGrid, marked }) {
  if (painted === "queries") return marked;
  const place = chosenGrid && patchOfToken(chosenGrid, chosen);
  return place ? tokenOfPatch(grid, place.row, place.column) : null;
}

/**
 * What changes when a token of the other side is chosen.
 * @param {Sides} sides
 * @param {number} index
 * @returns {Partial<State>}
 */
export function otherChoice({ painted }, index) {
  return painted === "keys" ? { query: index } : { key: index };
}
