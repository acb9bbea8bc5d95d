/** The facts of a live page for bridge.js: from queries, keys and values that Python recorded. */

import { Data } from "../../../src/regard/views/html/static/core/data.js";
import { answerFacts } from "../../../src/regard/views/html/static/model/facts.js";
import { movement } from "../../../src/regard/views/html/static/model/movement.js";

/** @typedef {import("../../../src/regard/views/html/static/model/facts.js").AttentionRun} AttentionRun */
/** @typedef {{n: number, attentions: {q: string, k: string, v: string}[], vector: string}} RecordedRun */

/** @param {string} base64 */
const floats = (base64) => new Float32Array(Uint8Array.from(Buffer.from(base64, "base64")).buffer);

/** @param {Float32Array} numbers */
const base64 = (numbers) => Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString("base64");

/** @param {RecordedRun} run */
function decoded({ n, attentions, vector }) {
  return { n, attentions: attentions.map(({ q, k, v }) => ({ q: floats(q), k: floats(k), v: floats(v) })), vector: floats(vector) };
}

// The facts, and what a page's Data reads of their numbers.
/** @param {{run: RecordedRun, options: any}} argument */
export function facts({ run, options }) {
  const answer = answerFacts(decoded(run), options);
  const data = new Data(answer.facts, answer.numbers);
  const heads = answer.facts.attentions.map(({ heads: every }, at) =>
    every.map((_, place) => {
      const { q = null, k = null, v = null } = data.head(at, place) ?? {};
      return { pooled: base64(data.pooledMap(at, place).cells), ...Object.fromEntries(Object.entries({ q, k, v }).map(([name, t]) => [name, t && base64(t)])) };
    }),
  );
  return { facts: answer.facts, heads };
}

// The fewest milliseconds that facts take, of so many times.
/** @param {{run: RecordedRun, options: any, times: number}} argument */
export function factsTime({ run, options, times }) {
  const read = decoded(run);
  const seconds = Array.from({ length: times }, () => {
    const start = performance.now();
    answerFacts(read, options);
    return performance.now() - start;
  });
  return Math.min(...seconds);
}

/** @param {{before: RecordedRun, after: RecordedRun, options: any}} argument */
export function moved({ before, after, options }) {
  const { secondVector } = options;
  return movement(decoded(before), decoded(after), { ...options, secondVector: secondVector && floats(secondVector) });
}
