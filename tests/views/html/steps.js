/** For test_modules.py: a head on standard input, every step of its rows and its map on standard output. */

import { readFileSync } from "node:fs";

import { steps, tile } from "../../../src/regard/views/html/static/core/attention.js";

const said = JSON.parse(readFileSync(0, "utf-8"));

/** @type {import("./small.js").Head} */
const head = {
  ...said,
  q: Float32Array.from(said.q),
  k: Float32Array.from(said.k),
  v: Float32Array.from(said.v),
  rows: null,
  lse: null,
  bias: said.bias && ((query, key) => said.bias[query * said.keys + key]),
  allowed: said.allowed && ((query, key) => said.allowed[query * said.keys + key]),
};

const rows = Array.from({ length: head.queries }, (_, query) =>
  Object.fromEntries(Object.entries(steps(head, query)).map(([name, step]) => [name, [...(step ?? [])]])),
);
console.log(JSON.stringify({ rows, tile: [...tile(head, 0, head.queries, 0, head.keys)] }));
