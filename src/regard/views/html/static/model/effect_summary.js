/** The sentence that holds what was looked at against what mattered, as regard/lens/effects/table.py writes it. */

/** @typedef {import("../core/data.js").EffectPart} EffectPart */
/** @typedef {"heads" | "layers" | "tokens"} Over */

/** An effect is said to be a part of the metric where the metric is at least this share of it. */
const SMALLEST_SHARE = 1e-3;

/** What a part is called, and what it does when it is looked at or looks. */
const WORDS = {
  heads: { noun: "head", looks: "looks", gets: "gives" },
  layers: { noun: "layer", looks: "looks", gets: "gives" },
  tokens: { noun: "token", looks: "is looked at", gets: "gets" },
};

/**
 * @param {Over} over
 * @param {EffectPart[]} parts whose effects are known, with what was looked at
 * @param {number} baseline the metric of the model as it is
 */
export function summary(over, parts, baseline) {
  const { noun, looks, gets } = WORDS[over];
  const best = first(parts, ({ effect }) => Math.abs(effect ?? 0));
  const hardest = first(parts, ({ looked_at: lookedAt }) => lookedAt ?? -Infinity);
  if (!best || !hardest) return "Nothing is known yet.";
  const effect = Number(best.effect);
  const share = baseline > SMALLEST_SHARE * Math.abs(effect) ? ` of ${short(baseline)}` : "";
  const together = correlation(parts.map(({ looked_at: lookedAt }) => Number(lookedAt)), parts.map((part) => Number(part.effect)));
  return (
    `Over ${parts.length} ${noun}${parts.length === 1 ? "" : "s"}, attention and effect correlate at ${short(together, 2)}; the ${noun} that ${looks} ` +
    `hardest, ${hardest.name} (${Number(hardest.looked_at).toFixed(2)}), adds ${short(Number(hardest.effect))} to the metric; ` +
    `the ${noun} that matters most, ${best.name}, adds ${short(effect)}${share} (it ${gets} ${Number(best.looked_at).toFixed(2)}).`
  );
}

/**
 * Pearson's correlation; NaN for fewer than two pairs, or where one side is the same everywhere.
 * @param {number[]} one
 * @param {number[]} other
 */
export function correlation(one, other) {
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, each) => sum + each, 0) / values.length;
  const [meanOne, meanOther] = [mean(one), mean(other)];
  const [a, b] = [one.map((each) => each - meanOne), other.map((each) => each - meanOther)];
  const lengths = Math.hypot(...a) * Math.hypot(...b);
  if (one.length < 2 || lengths === 0) return NaN;
  return Math.max(-1, Math.min(1, a.reduce((sum, each, i) => sum + each * Number(b[i]), 0) / lengths));
}

/**
 * A number with three significant digits, without zeros at the end; a dash where it is not known.
 * @param {number} value
 * @param {number} [digits]
 */
export function short(value, digits = 3) {
  if (Number.isNaN(value)) return "-";
  if (value === 0) return "0";
  const [mantissa = "", power = "0"] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  const trimmed = (/** @type {string} */ text) => (text.includes(".") ? text.replace(/\.?0+$/u, "") : text);
  if (exponent >= -4 && exponent < digits) return trimmed(value.toFixed(digits - 1 - exponent));
  return `${trimmed(mantissa)}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

/**
 * The first part with the largest measure.
 * @param {EffectPart[]} parts
 * @param {(part: EffectPart) => number} measure
 */
function first(parts, measure) {
  return parts.reduce((/** @type {EffectPart | null} */ best, part) => (best === null || measure(part) > measure(best) ? part : best), null);
}
