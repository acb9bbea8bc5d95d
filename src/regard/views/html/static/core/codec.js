/**
 * Decodes the numbers of a page: text of seven bits a character, gzip, and integers as byte planes.
 * The encoder is regard/views/html/codec.py.
 */

/** Characters of seven bits that a script element cannot hold: NUL, line feed, carriage return, "<". */
const FORBIDDEN = [0x00, 0x0a, 0x0d, 0x3c];

/** A character from this code point on stands for a forbidden code and the seven bits after it. */
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
  try {
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch (error) {
    // Browsers say "Failed to fetch" of bytes that gzip did not write, and nothing is fetched here.
    throw new Error("the data in this file is damaged", { cause: error });
  }
}

/**
 * The location of an array in the numbers of a page.
 * @typedef {object} Ref
 * @property {number} at its index among the 16-bit integers, or its first byte after them
 * @property {number[]} shape
 * @property {number} step what the integers are multiplied by; 1 of 32-bit floating-point numbers, which are as they are
 * @property {"i16" | "i32" | "u8" | "bit" | "f32"} type
 */

/**
 * The numbers of an array, row by row.
 *
 * The low bytes of all 16-bit integers come first, then their high bytes, both signed, and then all other arrays. Arrays
 * of 16-bit integers are stored column by column.
 * @param {Uint8Array} numbers of the page
 * @param {number} numInt16 the number of 16-bit integers
 * @param {Ref} ref
 * @returns {Float32Array}
 */
export function decodeArray(numbers, numInt16, { at, shape, step, type }) {
  const count = shape.reduce((product, size) => product * size, 1);
  const out = new Float32Array(count);
  const from = 2 * numInt16 + at;
  if (type === "u8") for (let i = 0; i < count; i++) out[i] = byteAt(numbers, from + i) * step;
  else if (type === "bit") for (let i = 0; i < count; i++) out[i] = (byteAt(numbers, from + (i >> 3)) >> (7 - (i & 7))) & 1;
  else if (type === "i32" || type === "f32") {
    const view = new DataView(numbers.buffer, numbers.byteOffset + from, count * 4);
    if (type === "f32") for (let i = 0; i < count; i++) out[i] = view.getFloat32(i * 4, true);
    else for (let i = 0; i < count; i++) out[i] = view.getInt32(i * 4, true) * step;
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
