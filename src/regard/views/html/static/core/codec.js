/**
 * How numbers travel in a page: text of seven bits a character, gzip, and integers in byte planes.
 * The other half, which writes, is regard/views/html/codec.py.
 */

/** What seven bits may say and a script element may not hold: NUL, line feed, carriage return, "<". */
const FORBIDDEN = [0x00, 0x0a, 0x0d, 0x3c];

/** From this code point on a character holds one of those and the seven bits behind it. */
const PAIR = 0x100;

/**
 * The bytes that a text holds, seven bits in each character.
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function decodeSevenBits(text) {
  const bytes = new Uint8Array(Math.floor((text.length * 14) / 8) + 1);
  let at = 0;
  let held = 0;
  let bits = 0;
  /** @param {number} seven */
  const push = (seven) => {
    held = ((held << 7) | seven) & 0x3fff;
    bits += 7;
    if (bits >= 8) {
      bits -= 8;
      bytes[at++] = held >> bits;
    }
  };
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code < PAIR) push(code);
    else {
      push(/** @type {number} */ (FORBIDDEN[(code - PAIR) >> 7]));
      push(code & 0x7f);
    }
  }
  return bytes.subarray(0, at);
}

/**
 * What gzip packed. Bytes behind its end, which fill the last character, are left out first.
 * @param {Uint8Array<ArrayBuffer>} packed
 * @param {number} length of what gzip wrote
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function gunzip(packed, length) {
  const stream = new Blob([packed.subarray(0, length)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Where an array stands among the numbers of a page.
 * @typedef {object} Ref
 * @property {number} at its place among the numbers of 16 bits, or its first byte among what stands behind those
 * @property {number[]} shape
 * @property {number} step what the integers are multiplied by
 * @property {"i16" | "i32" | "u8" | "bit"} type
 */

/**
 * The numbers of an array, row by row.
 *
 * A page begins with the low bytes of all numbers of 16 bits, then come their high bytes, both with a sign, and then
 * everything else. Arrays of such numbers stand column by column. So they pack best.
 * @param {Uint8Array} numbers of the page
 * @param {number} numInt16 how many numbers of 16 bits it has
 * @param {Ref} ref
 * @returns {Float32Array}
 */
export function decodeArray(numbers, numInt16, { at, shape, step, type }) {
  const count = shape.reduce((product, size) => product * size, 1);
  const out = new Float32Array(count);
  const from = 2 * numInt16 + at;
  if (type === "u8") for (let i = 0; i < count; i++) out[i] = byteAt(numbers, from + i) * step;
  else if (type === "bit") for (let i = 0; i < count; i++) out[i] = (byteAt(numbers, from + (i >> 3)) >> (7 - (i & 7))) & 1;
  else if (type === "i32") {
    const view = new DataView(numbers.buffer, numbers.byteOffset + from, count * 4);
    for (let i = 0; i < count; i++) out[i] = view.getInt32(i * 4, true) * step;
  } else {
    const columns = shape.length > 1 ? Number(shape.at(-1)) : 1;
    for (let column = 0, i = at; column < columns; column++) {
      for (let to = column; to < count; to += columns, i++) {
        const low = (byteAt(numbers, i) << 24) >> 24;
        const high = (byteAt(numbers, numInt16 + i) << 24) >> 24;
        out[to] = (high * 256 + low) * step;
      }
    }
  }
  return out;
}

/**
 * @param {Uint8Array} numbers
 * @param {number} at
 */
function byteAt(numbers, at) {
  return /** @type {number} */ (numbers[at]);
}
