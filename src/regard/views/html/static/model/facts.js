/** The facts of a text that the page's own model read: what regard's `attention_facts` says of a recording. */

import { HeadWeights } from "./attention_weights.js";
import { headType, tokenRoles } from "./head_types.js";
import { informativeness, meanDistance, outputDifference, pooledCells, poolMap, strongestPairs } from "./head_statistics.js";

/** @typedef {import("../core/codec.js").Ref} Ref */
/** @typedef {import("../core/data.js").Attention} Attention */
/** @typedef {import("../core/data.js").Facts} Facts */
/** @typedef {import("../core/data.js").HeadFacts} HeadFacts */
/** @typedef {import("./encoder.js").Run} Run */

/**
 * @typedef {object} ModelShape
 * @property {number} numHeads of each layer
 * @property {number} dHead
 * @property {number} scale that a product of query and key is multiplied by
 */

/**
 * @typedef {object} TextOfRun
 * @property {string[]} tokens as they are shown
 * @property {string} title
 * @property {string} model its name
 * @property {string} generator the version of regard
 * @property {string[]} paths of each layer's attention
 * @property {import("../core/data.js").Context | null} context
 * @property {string[]} [notes]
 */

/** The largest difference of weights @ v from the model's own output, relative to its largest number, that is rounding. */
const MAX_ERROR = 1e-3;

/** Bytes of a 32-bit number. */
const FLOAT_BYTES = 4;

/**
 * The facts and the numbers of a `Data`: every head with its queries, keys and values, nothing rounded.
 *
 * Numbers are of the size of 12 * n * width bytes a layer, in a buffer of their own, which may be transferred.
 * @param {Pick<Run, "n" | "attentions">} run
 * @param {TextOfRun & ModelShape} options
 * @returns {{facts: Facts, numbers: Uint8Array<ArrayBuffer>}}
 */
export function answerFacts(run, options) {
  const { tokens, title, model, generator, paths, numHeads, dHead, scale, context, notes = [] } = options;
  if (tokens.length !== run.n) throw new RangeError(`${tokens.length} tokens for a run of ${run.n}: give one for each id that the model read`);
  if (paths.length !== run.attentions.length) throw new RangeError(`${paths.length} paths for ${run.attentions.length} layers: give one for each`);
  const pack = new NumberPack(run, numHeads * dHead, numHeads * pooledCells(run.n) ** 2);
  const head = new HeadWeights({ n: run.n, dHead, scale });
  const roles = tokenRoles(tokens);
  const choice = new MostInformative();
  const attentions = run.attentions.map((layer, index) => {
    let difference = 0;
    const heads = Array.from({ length: numHeads }, (_, place) => {
      head.compute(layer, place);
      difference = Math.max(difference, outputDifference(head, layer, place));
      choice.consider(index, place, informativeness(head, roles.delimiters));
      return headFacts(head, place, roles, pack, pack.layerRef(index, "q", place, dHead));
    });
    const kvHeads = heads.map((_, place) => ({ k: pack.layerRef(index, "k", place, dHead), v: pack.layerRef(index, "v", place, dHead) }));
    const maxError = difference / layer.output.reduce((most, each) => Math.max(most, Math.abs(each)), 1e-30);
    return { ...attentionFacts(run.n, dHead, scale), max_error: maxError, verified: maxError <= MAX_ERROR, path: /** @type {string} */ (paths[index]), layer: index, kv_heads: kvHeads, heads };
  });
  /** @type {Facts} */
  const facts = {
    ...{ title, model, generator, texts: [{ tokens }], attentions, notes, omitted: [], num_int16: 0 },
    ...{ initial: choice.initial(attentions), image: null, context, effects: [], view: null },
  };
  return { facts, numbers: pack.bytes };
}

/**
 * What all layers have in common.
 * @param {number} n
 * @param {number} dHead
 * @param {number} scale
 */
function attentionFacts(n, dHead, scale) {
  return {
    ...{ group: "self", kind: "self", queries: n, keys: n, query_offset: 0, query_text: 0, key_text: 0 },
    ...{ mask: "none", kernel: "this page", computed_here: true, max_weight_error: 0 },
    ...{ scale, softcap: null, dropout: 0, d_key: dHead, d_value: dHead, first_key: null, end_key: null },
    ...{ query_patches: null, key_patches: null },
  };
}

/**
 * @param {HeadWeights} head
 * @param {number} place
 * @param {import("./head_types.js").TokenRoles} roles
 * @param {NumberPack} pack
 * @param {Ref} q
 * @returns {HeadFacts}
 */
function headFacts(head, place, roles, pack, q) {
  const cells = pooledCells(head.n);
  const type = headType(head, roles);
  const { bytes, ref } = pack.pooled(cells);
  return {
    number: place,
    ...type,
    entropy: head.entropies.reduce((sum, each) => sum + each, 0) / head.n,
    distance: meanDistance(head),
    first_token_share: type.head_type_scores["attention sink"] ?? null,
    pairs: strongestPairs(head, roles.delimiters),
    pooled: ref,
    max_pooled: poolMap(head, bytes),
    payload: { q, kv_head: place, rows: null, lse: null, entropy: null, received: null, sink: null, bias: null, allowed: null },
  };
}

/** The numbers of a run: queries, keys and values of each layer, and then the pooled maps. */
class NumberPack {
  #n;
  #width;
  #end;

  /**
   * @param {Pick<Run, "n" | "attentions">} run
   * @param {number} width of a layer's queries, all heads together
   * @param {number} pooledSize of a layer's pooled maps, in bytes
   */
  constructor({ n, attentions }, width, pooledSize) {
    this.#n = n;
    this.#width = width;
    const floats = new Float32Array(attentions.length * 3 * n * width + Math.ceil((attentions.length * pooledSize) / FLOAT_BYTES));
    attentions.forEach(({ q, k, v }, layer) => [q, k, v].forEach((tensor, i) => floats.set(tensor, (3 * layer + i) * n * width)));
    this.#end = attentions.length * 3 * n * width * FLOAT_BYTES;
    this.bytes = new Uint8Array(floats.buffer);
  }

  /**
   * One head of a layer's tensor.
   * @param {number} layer
   * @param {"q" | "k" | "v"} name
   * @param {number} head
   * @param {number} dHead
   * @returns {Ref}
   */
  layerRef(layer, name, head, dHead) {
    const tensor = (3 * layer + "qkv".indexOf(name)) * this.#width + head * dHead;
    return { at: tensor * this.#n * FLOAT_BYTES, shape: [this.#n, dHead], step: 1, type: "f32" };
  }

  /**
   * Room for the next pooled map.
   * @param {number} cells
   * @returns {{bytes: Uint8Array, ref: Ref}}
   */
  pooled(cells) {
    const at = this.#end;
    this.#end += cells * cells;
    return { bytes: this.bytes.subarray(at, this.#end), ref: { at, shape: [cells, cells], step: 1 / 255, type: "u8" } };
  }
}

/** The head that is shown first. */
class MostInformative {
  #largest = [0, 0, 0];
  #choices = [0, 1, 2].map(() => ({ attention: 0, head: 0 }));

  /**
   * @param {number} attention
   * @param {number} head
   * @param {number[]} measures
   */
  consider(attention, head, measures) {
    measures.forEach((measure, i) => {
      if (measure <= Number(this.#largest[i])) return;
      this.#largest[i] = measure;
      this.#choices[i] = { attention, head };
    });
  }

  /**
   * With the query of its strongest pair.
   * @param {{queries: number, heads: HeadFacts[]}[]} attentions
   */
  initial(attentions) {
    const decisive = this.#largest.findIndex((largest) => largest > 0);
    const choice = this.#choices[decisive] ?? { attention: 0, head: 0 };
    const attention = attentions[choice.attention];
    const [pair] = attention?.heads[choice.head]?.pairs ?? [];
    return { ...choice, query: pair ? pair.query : (attention?.queries ?? 1) - 1 };
  }
}
