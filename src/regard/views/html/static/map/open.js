/** The way to the map of a head, from the views that list heads. */

/**
 * Opens the map of a head. Another attention may have fewer queries and other keys.
 * @param {import("../page.js").Page} page
 * @param {number} attention
 * @param {number} head
 */
export function openMap({ data, store, suffix }, attention, head) {
  const { state } = store;
  const { queries } = data.attention(attention);
  const rowState = attention === state.attention ? {} : { query: Math.min(state.query, queries - 1), key: null, viewport: null };
  store.set({ attention, head, ...rowState, view: "map" });
  document.getElementById(`view-map${suffix}`)?.focus();
}
