/** The heads, layers, tokens or edges of a view Effect: their order, their ranks, and their description. */

/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("../core/data.js").EffectPart} EffectPart */
/** @typedef {"effect" | "raises" | "lowers" | "looked_at" | "place"} PartOrder */

/** What a part is called, one and several. */
export const NOUNS = { heads: ["head", "heads"], layers: ["layer", "layers"], tokens: ["token", "tokens"], edges: ["edge", "edges"] };

/**
 * The exact effect, or the estimate where there is none.
 * @param {EffectPart} part
 */
function bestEffect({ effect, estimate }) {
  return effect ?? estimate;
}

/**
 * The orders that make sense for some effects, and what they are called.
 * @param {EffectFacts} facts
 * @returns {[PartOrder, string][]}
 */
export function partOrders(facts) {
  const place = facts.over === "tokens" ? "position" : facts.over === "edges" ? "place" : "layer";
  /** @type {[PartOrder, string][]} */
  const orders = [
    ["effect", "effect, strongest first"],
    ["raises", "effect, what raises the metric most first"],
    ["lowers", "effect, what lowers the metric most first"],
  ];
  if (facts.looked_at !== null) orders.push(["looked_at", "attention, most looked at first"]);
  return [...orders, ["place", place]];
}

/**
 * The number that an order goes by, the largest first; null where it is not known.
 * @param {EffectPart} part
 * @param {PartOrder} order
 */
function rankValue(part, order) {
  const best = bestEffect(part);
  if (order === "place") return 0;
  if (order === "looked_at") return part.looked_at;
  if (best === null) return null;
  return order === "effect" ? Math.abs(best) : order === "raises" ? best : -best;
}

/**
 * Parts in an order; those without a value come last, and equal ones stay as they are.
 * @param {EffectPart[]} parts
 * @param {PartOrder} order
 */
export function sortParts(parts, order) {
  const value = (/** @type {EffectPart} */ part) => rankValue(part, order) ?? -Infinity;
  return [...parts].sort((a, b) => (value(a) === value(b) ? 0 : value(a) < value(b) ? 1 : -1));
}

/**
 * The place of each part in an order, from 1.
 * @param {EffectPart[]} parts
 * @param {PartOrder} order
 * @returns {Map<EffectPart, number>}
 */
export function ranks(parts, order) {
  const known = parts.filter((part) => rankValue(part, order) !== null);
  return new Map(sortParts(known, order).map((part, i) => [part, i + 1]));
}

/**
 * The largest size of a number of all parts; 1 where all are 0.
 * @param {EffectPart[]} parts
 * @param {("effect" | "estimate" | "looked_at")[]} names
 */
export function largest(parts, names) {
  return Math.max(0, ...parts.flatMap((part) => names.map((name) => Math.abs(part[name] ?? 0)))) || 1;
}

/**
 * Three digits, or a dash for what is not known.
 * @param {number | null} value
 */
export function shortNumber(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  const text = size === 0 ? "0" : size < 0.0005 || size >= 1e6 ? value.toExponential(1) : size >= 1000 ? value.toFixed(0) : value.toPrecision(3);
  return text.replaceAll("-", "−");
}

/**
 * What a part does, in words.
 * @param {EffectFacts} facts
 * @param {EffectPart} part
 */
export function partDescription(facts, { effect, estimate, looked_at: lookedAt }) {
  const estimateText = facts.has_exact ? `estimate ${shortNumber(estimate)}` : `effect estimated to first order ${shortNumber(estimate)}`;
  return [
    facts.has_exact && (effect === null && facts.has_estimates ? "effect not computed exactly" : `effect ${shortNumber(effect)}`),
    facts.has_estimates && estimateText,
    facts.looked_at !== null && `looked at ${shortNumber(lookedAt)}`,
  ]
    .filter((text) => typeof text === "string")
    .join(", ");
}
