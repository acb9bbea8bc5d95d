/** The facts of a live page for bridge.js: of what Python recorded, and of the page's own model. */

import { Data } from "../../../src/regard/views/html/static/core/data.js";
import { answerFacts } from "../../../src/regard/views/html/static/model/facts.js";
import { short } from "../../../src/regard/views/html/static/model/effect_summary.js";
import { effects } from "../../../src/regard/views/html/static/model/effects.js";
import { movement } from "../../../src/regard/views/html/static/model/movement.js";
import { encoderOf } from "./encoder_bridge.js";

/** @typedef {{n: number, attentions: {q: string, k: string, v: string, output: string}[], vector: string}} RecordedRun */

/** @param {string} base64 */
const floats = (base64) => new Float32Array(Uint8Array.from(Buffer.from(base64, "base64")).buffer);

/** @param {Float32Array} numbers */
const base64 = (numbers) => Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString("base64");

/** @param {RecordedRun} run */
function decoded({ n, attentions, vector }) {
  return { n, attentions: attentions.map(({ q, k, v, output }) => ({ q: floats(q), k: floats(k), v: floats(v), output: floats(output) })), vector: floats(vector) };
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
  return { facts: answer.facts, heads, numbers: Buffer.from(answer.numbers).toString("base64") };
}

/** @param {{before: RecordedRun, after: RecordedRun, options: any}} argument */
export function moved({ before, after, options }) {
  const { secondVector } = options;
  return movement(decoded(before), decoded(after), { ...options, secondVector: secondVector && floats(secondVector) });
}

// Each result of effects on its way, of the page's own model; `until` ends it after so many.
/** @param {{model: string, ids: number[], second: number[] | null, source: number[] | null, until?: number, options: any}} argument */
export async function effectsOf({ model, ids, second, source, until = Infinity, options }) {
  const encoder = encoderOf(model);
  const [run, secondRun, sourceRun] = await Promise.all([ids, second, source].map((each) => (each ? encoder.forward(each) : null)));
  if (!run) throw new TypeError("no ids");
  const found = [];
  for await (const result of effects(encoder, ids, run, { ...options, secondVector: secondRun?.vector ?? null, source: sourceRun ?? null })) {
    found.push(result);
    if (found.length >= until) break;
  }
  return found;
}

// The facts and the movement of the page's own model: of a text, and of the same with edits.
/** @param {{model: string, ids: number[], edits: any[], options: any}} argument */
export async function movedModel({ model, ids, edits, options }) {
  const encoder = encoderOf(model);
  const run = await encoder.forward(ids);
  const { facts } = answerFacts(run, options);
  return { facts, movement: movement(run, await encoder.forward(ids, { edits, after: run }), { ...options, edits, secondVector: null }) };
}

// Numbers as the sentence about effects has them.
/** @param {{numbers: number[], digits: number}} argument */
export const shortNumbers = ({ numbers, digits }) => numbers.map((number) => short(number, digits));
