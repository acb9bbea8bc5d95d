/** From "looked at" to "mattered": the effect of heads, layers, tokens or edges beside the attention that they give or get. */

import { NOUNS, shortNumber } from "./order.js";
import { effectTable } from "./table.js";
import { effectTokens } from "./tokens.js";
import { element, visible } from "../core/dom.js";

/** @typedef {import("./order.js").EffectFacts} EffectFacts */

/** @type {import("../page.js").View} */
export const effect = {
  name: "effect",
  title: "Effect",
  help: "What was looked at beside what mattered. An effect is the metric of the model as it is, minus the metric without this part: above 0 the part raises the metric, below 0 it lowers it. A click on a head opens its map.",
  fits: (data) => data.facts.effects.length > 0,
  mount: (root, page) => {
    const tables = page.data.facts.effects.map((facts) => {
      const table = effectTable(page, facts);
      root.append(
        element(
          "section",
          { class: "effect-part", "data-over": facts.over },
          element("h2", {}, `Effect of each ${NOUNS[facts.over][0]} on `, element("bdi", {}, visible(facts.metric))),
          ...about(facts),
          facts.over === "tokens" && effectTokens(page, facts, (part) => table.choose(part)),
          legend(facts),
          table.root,
        ),
      );
      return { table, over: facts.over };
    });
    return () => tables.forEach(({ table, over }) => over === "heads" && table.mark());
  },
};

/**
 * How it was measured, and what came of it.
 * @param {EffectFacts} facts
 */
function about(facts) {
  const { metric, baseline, num_texts: texts, ablation, method, looked_at: lookedAt, summary, notes } = facts;
  const mean = texts > 1 ? `, mean of ${texts} texts` : "";
  return [
    element("p", { class: "summary" }, visible(summary)),
    element(
      "dl",
      { class: "about" },
      ...[
        ["metric", `${metric}: ${shortNumber(baseline)} as the model is${mean}`],
        ["ablation", ablation],
        ["effects", method],
        lookedAt !== null && ["looked at", lookedAt],
      ].flatMap((row) => (row ? [element("dt", {}, String(row[0])), element("dd", {}, visible(String(row[1])))] : [])),
    ),
    notes.length > 0 && element("ul", { class: "doubt" }, ...notes.map((note) => element("li", {}, visible(note)))),
  ];
}

/** @param {EffectFacts} facts */
function legend({ has_exact: hasExact, has_estimates: hasEstimates, looked_at: lookedAt }) {
  const sample = (/** @type {string} */ kind) => element("span", { class: `sample ${kind}`, "aria-hidden": "true" });
  return element(
    "p",
    { class: "legend" },
    ...[
      lookedAt !== null && [sample("share"), "looked at"],
      hasExact && [sample("raises"), "effect: raises the metric"],
      hasExact && [sample("lowers"), "lowers it"],
      hasEstimates && [sample("hollow"), `estimated to first order${hasExact ? "" : ", none computed exactly"}`],
    ].flatMap((row) => (row ? [element("span", {}, ...row)] : [])),
    element("span", { class: "quiet" }, "Each bar is measured by the longest of its kind."),
  );
}
