/** The page's modules for conftest.py's `node`: each line of standard input is a call, each line of output its result. */

import { createInterface } from "node:readline";

import { steps, tile } from "../../../src/regard/views/html/static/core/attention.js";
import { decodeArray, decodeSevenBits, gunzip } from "../../../src/regard/views/html/static/core/codec.js";
import { Data } from "../../../src/regard/views/html/static/core/data.js";
import * as encoders from "./encoder_bridge.js";
import * as facts from "./facts_bridge.js";
import { tokenFunctions } from "./tokens_bridge.js";

/** @typedef {import("../../../src/regard/views/html/static/core/codec.js").Ref} Ref */

/** @param {ArrayLike<number> | null} numbers */
const base64 = (numbers) => numbers && Buffer.from(Float64Array.from(numbers).buffer).toString("base64");

// As much of a document as data.js needs.
/** @param {string} text */
function documentOf(text) {
  return /** @type {Document} */ ({
    getElementById: (id) => {
      const [, bytes, textContent] = text.match(new RegExp(`id="${id}" data-bytes="(\\d+)">([^<]*)</script>`)) ?? [];
      return /** @type {unknown} */ ({ textContent, dataset: { bytes } });
    },
  });
}

// What a page's data.js computes of it: of each head every n-th row, and the last one.
/** @param {{text: string, stride: number}} argument */
async function page({ text, stride }) {
  const data = await Data.read(documentOf(text));
  const attentions = data.facts.attentions.map(({ queries, heads }, at) =>
    heads.map((_, head) => {
      const { cells, rows: high, columns: wide } = data.pooledMap(at, head);
      const read = data.head(at, head);
      const known = read ? Array.from(read.rows ?? { length: queries }, (row, i) => row ?? i) : [];
      const rows = known.filter((_, i) => i % stride === 0 || i === known.length - 1);
      const found = rows.map((row) => data.row(at, head, row));
      const { entropy = null, received = null, lse = null } = data.headFacts(at, head).payload ?? {};
      return {
        rows,
        weights: found.map((row) => base64(row?.weights ?? null)),
        outputs: found.map((row) => base64(row?.output ?? null)),
        map: base64(stride === 1 ? data.map(at, head) : null),
        picture: { high, wide, cells: base64(cells) },
        entropy: base64(entropy && data.array(entropy)),
        received: base64(received && data.array(received)),
        lse: base64(lse && data.array(lse)),
      };
    }),
  );
  return { facts: data.facts, attentions };
}

// The bytes and the arrays of a packed text.
/** @param {{text: string, length: number, numInt16: number, refs: Ref[]}} argument */
async function arrays({ text, length, numInt16, refs }) {
  const numbers = await gunzip(decodeSevenBits(text), length);
  return { bytes: Buffer.from(numbers).toString("hex"), arrays: refs.map((ref) => [...decodeArray(numbers, numInt16, ref)]) };
}

// Every step of each row of a head with some edits, and its map.
/** @param {any} argument */
function head({ edits, ...facts }) {
  /** @type {import("./small.js").Head} */
  const head = {
    ...facts,
    ...Object.fromEntries(["q", "k", "v", "lse"].map((name) => [name, facts[name] && Float32Array.from(facts[name])])),
    rows: null,
    bias: facts.bias && ((query, key) => facts.bias[query][key]),
    allowed: facts.allowed && ((query, key) => facts.allowed[query][key]),
  };
  const rows = Array.from({ length: head.queries }, (_, query) =>
    Object.fromEntries(Object.entries(steps(head, query, edits)).map(([name, step]) => [name, [...(step ?? [])]])),
  );
  return { rows, tile: [...tile(head, 0, head.queries, 0, head.keys)] };
}

// What a script writes to its console.
/** @param {string} script */
function run(script) {
  /** @type {string[]} */
  const lines = [];
  new Function("console", `"use strict";${script}`)({ log: (/** @type {unknown[]} */ ...all) => lines.push(all.join(" ")) });
  return lines;
}

/** @type {Record<string, (argument: any) => unknown>} */
const functions = { page, arrays, head, run, ...encoders, ...facts, ...tokenFunctions };
for await (const line of createInterface({ input: process.stdin })) {
  const [name, argument] = JSON.parse(line);
  const result = Promise.resolve(argument).then(functions[name]);
  console.log(JSON.stringify(await result.catch((error) => ({ error: error.stack }))));
}
