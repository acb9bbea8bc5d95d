/** The heads of a group of attentions: their order, and their description. */

import { percentText } from "../core/dom.js";

/** @typedef {import("../core/data.js").Data} Data */
/** @typedef {import("../core/data.js").HeadFacts} HeadFacts */

/**
 * One head of the page.
 * @typedef {object} HeadPlace
 * @property {number} attention its place in the page
 * @property {number} head its place among the attention's
 * @property {number} layer
 * @property {HeadFacts} facts
 */

/** @typedef {"layer" | "head_type" | "entropy" | "first_token_share" | "distance"} Order */

/** What heads of each type do, in the order of the legend. */
export const HEAD_TYPES = {
  "previous token": "looks at the token before",
  "attention sink": "rests on the first token",
  "same token": "looks at its own token, where it stands and wherever else",
  induction: "looks at what followed an earlier occurrence of its token",
  delimiter: "looks at punctuation and the end",
  uniform: "looks at everything about evenly",
  mixed: "nothing of that",
};

/** @type {Record<Order, string>} */
export const HEAD_ORDERS = {
  layer: "layer",
  head_type: "type, highest score first",
  entropy: "entropy, from one token to all",
  first_token_share: "share on the first token, largest first",
  distance: "distance, farthest back first",
};

/**
 * The heads of all attentions with the same group as one of them, layer by layer.
 * @param {Data} data
 * @param {number} attention
 * @returns {HeadPlace[]}
 */
export function groupHeads(data, attention) {
  const { group } = data.attention(attention);
  const all = data.facts.attentions.flatMap((each, index) =>
    each.group === group ? each.heads.map((facts, head) => ({ attention: index, head, layer: each.layer, facts })) : [],
  );
  return all.sort((a, b) => a.layer - b.layer || a.attention - b.attention || a.head - b.head);
}

/**
 * Heads in an order; heads without a value come last.
 * @param {HeadPlace[]} places layer by layer
 * @param {Order} order
 * @returns {HeadPlace[]}
 */
export function sortHeads(places, order) {
  const types = Object.keys(HEAD_TYPES);
  /** @type {(place: HeadPlace) => number[]} */
  const rank = ({ facts }) => {
    if (order === "head_type") return [types.indexOf(facts.head_type), -(facts.head_type_scores[facts.head_type] ?? 0)];
    if (order === "entropy") return [facts.entropy];
    if (order === "layer") return [0];
    const value = facts[order];
    return [value === null ? Infinity : -value];
  };
  const ranked = places.map((place) => ({ place, ranks: rank(place) }));
  ranked.sort((a, b) => {
    const at = a.ranks.findIndex((value, i) => value !== b.ranks[i]);
    return at < 0 ? 0 : Number(a.ranks[at]) < Number(b.ranks[at]) ? -1 : 1; // no difference: infinities have none
  });
  return ranked.map(({ place }) => place);
}

/**
 * Where an arrow key leads in a grid that fills line by line.
 * @param {string} key
 * @param {number} from
 * @param {number} count
 * @param {number} columns
 * @returns {number | null} null for another key
 */
export function gridStep(key, from, count, columns) {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!(key in steps)) return null;
  const to = from + steps[/** @type {keyof typeof steps} */ (key)];
  return to < 0 || to >= count ? from : to;
}

/**
 * How far back a head looks, in words; null where that cannot be said.
 * @param {number | null} distance
 */
export function distanceText(distance) {
  if (distance === null) return null;
  const size = Math.abs(distance);
  const tokens = `${size < 9.95 ? size.toFixed(1) : Math.round(size)} tokens`;
  return size < 0.05 ? "0 tokens" : distance > 0 ? `${tokens} back` : `${tokens} ahead`;
}

/**
 * The number that an order goes by.
 * @param {HeadFacts} facts
 * @param {Order} order
 */
export function orderValue(facts, order) {
  if (order === "first_token_share") return facts.first_token_share === null ? "" : percentText(facts.first_token_share, 0);
  if (order === "distance") return distanceText(facts.distance) ?? "";
  if (order === "head_type") return facts.head_type in facts.head_type_scores && facts.head_type_scores[facts.head_type] !== null ? percentText(Number(facts.head_type_scores[facts.head_type]), 0) : "";
  return `${facts.entropy.toFixed(1)} nats`;
}

/**
 * A head in a sentence, for those who do not see its picture.
 * @param {HeadPlace} place
 */
export function headDescription({ layer, facts }) {
  const { number, head_type: headType, entropy, first_token_share: share, distance } = facts;
  return [
    `layer ${layer}, head ${number}: ${headType}`,
    `entropy ${entropy.toFixed(2)} nats`,
    share === null ? "" : `${percentText(share, 0)} on the first token`,
    distance === null ? "" : distanceText(distance),
  ]
    .filter(Boolean)
    .join(", ");
}
