/** The margins of a map: the entropy of each query, and the attention that each key receives. */

/** @typedef {import("../core/data.js").Data} Data */

/**
 * @typedef {object} Margins
 * @property {Float32Array | null} entropy of each query in nats, NaN where it is unknown
 * @property {Float32Array} received by each key, as a multiple of its fair share: queries / keys
 * @property {boolean} approximate whether they were added up from the picture
 */

/**
 * @param {Data} data
 * @param {number} index of the attention
 * @param {number} head
 * @param {Float32Array | null} whole every weight, where they are computed
 * @returns {Margins}
 */
export function computeMargins(data, index, head, whole) {
  const { queries, keys } = data.attention(index);
  const { payload } = data.headFacts(index, head);
  if (payload?.entropy && payload.received) {
    return {
      entropy: scatterRows(data.array(payload.entropy), payload.rows && data.array(payload.rows), queries),
      received: data.array(payload.received).map((sum) => (sum * keys) / queries),
      approximate: false,
    };
  }
  if (whole) return { ...sumCells(whole, queries, keys, queries, keys), approximate: false };
  const { rows, columns, cells } = data.pooledMap(index, head);
  const { entropy, received } = sumCells(cells, rows, columns, queries, keys);
  return { entropy: rows === queries && columns === keys ? entropy : null, received, approximate: true };
}

/**
 * The entropy of each row of cells, and what each key of a column receives, in fair shares.
 * @param {Float32Array} cells each the sum over its keys, averaged over its queries
 * @param {number} rows
 * @param {number} columns
 * @param {number} queries
 * @param {number} keys
 */
export function sumCells(cells, rows, columns, queries, keys) {
  const entropy = new Float32Array(rows);
  const column = new Float32Array(columns);
  for (let row = 0; row < rows; row++) {
    const height = cellEdge(row + 1, queries, rows) - cellEdge(row, queries, rows);
    for (let i = 0; i < columns; i++) {
      const cell = Number(cells[row * columns + i]);
      if (cell > 0) entropy[row] = Number(entropy[row]) - cell * Math.log(cell);
      column[i] = Number(column[i]) + cell * height;
    }
  }
  const received = new Float32Array(keys);
  for (let i = 0; i < columns; i++) {
    const [from, to] = [cellEdge(i, keys, columns), cellEdge(i + 1, keys, columns)];
    received.fill((Number(column[i]) / (to - from)) * (keys / queries), from, to);
  }
  return { entropy, received };
}

/**
 * The mean of the values in each of some bars; NaN where none is known.
 * @param {Float32Array} values
 * @param {number} from
 * @param {number} to not included
 * @param {number} bars at most one for each value
 */
export function binMeans(values, from, to, bars) {
  const out = new Float32Array(bars);
  for (let bar = 0; bar < bars; bar++) {
    let sum = 0;
    let counted = 0;
    for (let i = from + cellEdge(bar, to - from, bars); i < from + cellEdge(bar + 1, to - from, bars); i++) {
      const value = Number(values[i]);
      if (Number.isNaN(value)) continue;
      sum += value;
      counted++;
    }
    out[bar] = counted ? sum / counted : NaN;
  }
  return out;
}

/**
 * Where a cell of a picture begins, as regard pools maps: in cells as even as they can be.
 * @param {number} cell
 * @param {number} tokens
 * @param {number} cells
 */
export function cellEdge(cell, tokens, cells) {
  return Math.floor((cell * tokens) / cells);
}

/**
 * Which cell of a picture a token is in.
 * @param {number} position
 * @param {number} tokens
 * @param {number} cells
 */
export function cellOf(position, tokens, cells) {
  return Math.floor(((position + 1) * cells - 1) / tokens);
}

/**
 * @param {Float32Array} values of all queries, or of those in the page
 * @param {Float32Array | null} rows
 * @param {number} queries
 */
function scatterRows(values, rows, queries) {
  if (values.length === queries || !rows) return values;
  const all = new Float32Array(queries).fill(NaN);
  rows.forEach((row, i) => {
    all[row] = Number(values[i]);
  });
  return all;
}
