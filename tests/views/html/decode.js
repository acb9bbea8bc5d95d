/** For decoded.py: pages on standard input, what their own data.js computes of them on standard output. */

import { readFileSync } from "node:fs";

import { Data } from "../../../src/regard/views/html/static/core/data.js";

/** @typedef {{text: string, every: number}} Said a page, and of how many rows one is wanted */

/** @param {Float32Array | Float64Array | null} numbers */
const coded = (numbers) => numbers && Buffer.from(Float64Array.from(numbers).buffer).toString("base64");

/**
 * As much of a document as data.js needs.
 * @param {string} text
 */
function documentOf(text) {
  return /** @type {Document} */ ({
    getElementById: (id) => {
      const [, bytes, textContent] = text.match(new RegExp(`id="${id}" data-bytes="(\\d+)">([^<]*)</script>`)) ?? [];
      return /** @type {unknown} */ ({ textContent, dataset: { bytes } });
    },
  });
}

/** @param {Said} said */
async function computed({ text, every }) {
  const data = await Data.read(documentOf(text));
  const attentions = data.facts.attentions.map(({ queries, heads }, at) =>
    heads.map((_, head) => {
      const { cells, rows: high, columns: wide } = data.pooledMap(at, head);
      const read = data.head(at, head);
      const known = read ? Array.from(read.rows ?? { length: queries }, (row, i) => row ?? i) : [];
      const rows = known.filter((_, i) => i % every === 0 || i === known.length - 1);
      const found = rows.map((row) => data.row(at, head, row));
      const map = data.map(at, head);
      const { entropy = null, received = null } = data.headFacts(at, head).payload ?? {};
      return {
        rows,
        weights: found.map((row) => coded(row?.weights ?? null)),
        outputs: found.map((row) => coded(row?.output ?? null)),
        map: coded(map && every === 1 ? map : null),
        picture: { high, wide, cells: coded(cells) },
        entropy: coded(entropy && data.array(entropy)),
        received: coded(received && data.array(received)),
      };
    }),
  );
  return { facts: data.facts, attentions };
}

/** @type {Said[]} */
const said = JSON.parse(readFileSync(0, "utf-8"));
const pages = [];
for (const each of said) pages.push(await computed(each));
console.log(JSON.stringify(pages));
