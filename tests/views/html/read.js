/** For test_codec.py: packed texts and where their arrays stand on standard input, the numbers on standard output. */

import { readFileSync } from "node:fs";

import { decodeArray, decodeSevenBits, gunzip } from "../../../src/regard/views/html/static/core/codec.js";

/** @typedef {import("../../../src/regard/views/html/static/core/codec.js").Ref} Ref */

/** @type {{text: string, length: number, numInt16: number, refs: Ref[]}[]} */
const said = JSON.parse(readFileSync(0, "utf-8"));

const read = said.map(async ({ text, length, numInt16, refs }) => {
  const numbers = await gunzip(decodeSevenBits(text), length);
  return { bytes: Buffer.from(numbers).toString("hex"), arrays: refs.map((ref) => [...decodeArray(numbers, numInt16, ref)]) };
});
console.log(JSON.stringify(await Promise.all(read)));
