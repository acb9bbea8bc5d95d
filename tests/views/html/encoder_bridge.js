/** The page's own model for bridge.js: encoders by name, and what they make of ids. */

import { readFileSync } from "node:fs";

import { Encoder } from "../../../src/regard/views/html/static/model/encoder.js";
import { gelu } from "../../../src/regard/views/html/static/model/gelu.js";
import { decodeWeights } from "../../../src/regard/views/html/static/model/weights.js";

/** @typedef {import("../../../src/regard/views/html/static/model/encoder.js").HeadEdit} HeadEdit */
/** @typedef {import("../../../src/regard/views/html/static/model/encoder.js").Run} Run */
/** @typedef {import("../../../src/regard/views/html/static/model/weights.js").EncoderConfig} EncoderConfig */

const WASM = readFileSync(new URL("../../../src/regard/views/html/static/model/kernels.wasm", import.meta.url));

/** @type {Map<string, Encoder>} */
const encoders = new Map();

/** @param {Float32Array} numbers */
const base64 = (numbers) => Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString("base64");

/** @param {string} text */
const floats = (text) => new Float32Array(Uint8Array.from(Buffer.from(text, "base64")).buffer);

/** @param {string} name */
export const encoderOf = (name) => /** @type {Encoder} */ (encoders.get(name));

/** @param {Run} run */
const encoded = ({ hiddenStates, attentions, vector }) => ({
  hiddenStates: hiddenStates.map(base64),
  attentions: attentions.map(({ q, k, v, output }) => ({ q: base64(q), k: base64(k), v: base64(v), output: base64(output) })),
  vector: base64(vector),
});

/**
 * Opens an encoder; the message of the error where it is refused.
 * @param {{name: string, config: EncoderConfig, path: string}} argument
 */
export async function encoderOpen({ name, config, path }) {
  try {
    encoders.set(name, await Encoder.create(config, new Uint8Array(readFileSync(path)), WASM));
    return { refusal: null };
  } catch (error) {
    return { refusal: error instanceof Error ? error.message : String(error) };
  }
}

/** @typedef {Omit<HeadEdit, "output"> & {output?: string}} JsonEdit */

/**
 * A run; with `begin` one that begins again after the run without edits.
 * @param {{name: string, ids: number[], edits: JsonEdit[], hiddenTokens: number[], begin: boolean}} argument
 */
export async function encoderForward({ name, ids, edits, hiddenTokens, begin }) {
  const encoder = encoderOf(name);
  const given = edits.map((edit) => ({ ...edit, output: edit.output === undefined ? null : floats(edit.output) }));
  const after = begin ? await encoder.forward(ids) : null;
  let layers = 0;
  const run = await encoder.forward(ids, { edits: given, hiddenTokens, after, onLayer: () => layers++ });
  return { ...encoded(run), layers };
}

/**
 * What a refused run says.
 * @param {{name: string, ids: number[], edits: HeadEdit[], after: number[] | null, afterEdits: HeadEdit[]}} argument
 */
export async function encoderRefusal({ name, ids, edits, after, afterEdits }) {
  const encoder = encoderOf(name);
  const before = after && (await encoder.forward(after, { edits: afterEdits }));
  const refused = await encoder.forward(ids, { edits, after: before }).catch((error) => error);
  return { refusal: refused instanceof Error ? `${refused.name}: ${refused.message}` : null };
}

/**
 * A run that is cancelled after some layers.
 * @param {{name: string, ids: number[], layers: number}} argument
 */
export async function encoderCancel({ name, ids, layers }) {
  /** @type {number[][]} */
  const seen = [];
  const onLayer = async (/** @type {number} */ done, /** @type {number} */ total) => {
    seen.push([done, total]);
    await new Promise((next) => setTimeout(next));
    if (done === layers) throw new DOMException("another question came", "AbortError");
  };
  const error = await encoderOf(name).forward(ids, { onLayer }).catch((raised) => raised.name);
  return { seen, ended: error };
}

/**
 * The vectors of some texts that are read at the same time, layer by layer in turns.
 * @param {{name: string, texts: number[][]}} argument
 */
export async function encoderTogether({ name, texts }) {
  const onLayer = () => new Promise((next) => setTimeout(next));
  const runs = await Promise.all(texts.map((ids) => encoderOf(name).forward(ids, { onLayer })));
  return { vectors: runs.map(({ vector }) => base64(vector)) };
}

/** @param {{text: string, length: number}} argument */
export async function weightsDecoded({ text, length }) {
  const bytes = await decodeWeights(text, length).catch((error) => error.message);
  return typeof bytes === "string" ? { refusal: bytes } : { bytes: Buffer.from(bytes).toString("base64") };
}

/** @param {{numbers: string}} argument */
export function geluOf({ numbers }) {
  const found = floats(numbers);
  gelu(found, 0, found.length);
  return { numbers: base64(found) };
}
