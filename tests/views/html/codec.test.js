import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { gzipSync } from "node:zlib";

import { decodeArray, decodeSevenBits, gunzip } from "../../../src/regard/views/html/static/core/codec.js";

describe("text to bytes", () => {
  test("seven bits a character, the first bits first", () => {
    // 1000001 1100001 0... : "A" and "a" hold 10000011 1000010, and the rest of the second byte is not there yet.
    assert.deepEqual([...decodeSevenBits("Aa")], [0b10000011]);
    assert.deepEqual([...decodeSevenBits("Aa\x02")], [0b10000011, 0b10000100]);
    assert.deepEqual([...decodeSevenBits("")], []);
  });

  test("a character beyond holds one that may not be written, and the seven bits behind it", () => {
    const forbidden = [0x00, 0x0a, 0x0d, 0x3c];
    forbidden.forEach((seven, number) => {
      const pair = String.fromCharCode(0x100 + (number << 7) + 0x55);
      const bits = [seven, 0x55, 0x7f].map((each) => each.toString(2).padStart(7, "0")).join("");
      const expected = [bits.slice(0, 8), bits.slice(8, 16)].map((byte) => Number.parseInt(byte, 2));
      assert.deepEqual([...decodeSevenBits(`${pair}\x7f`)], expected);
    });
  });

  test("every byte comes back from its bits", () => {
    const bytes = Uint8Array.from({ length: 700 }, (_, i) => (i * 97) & 0xff);
    const bits = [...bytes].map((byte) => byte.toString(2).padStart(8, "0")).join("");
    const sevens = bits.match(/.{7}/gu) ?? [];
    assert.equal(sevens.length * 7, bits.length);
    let text = "";
    for (let i = 0; i < sevens.length; i++) {
      const code = Number.parseInt(String(sevens[i]), 2);
      const forbidden = [0x00, 0x0a, 0x0d, 0x3c].indexOf(code);
      text += forbidden < 0 ? String.fromCharCode(code) : String.fromCharCode(0x100 + (forbidden << 7) + Number.parseInt(sevens[++i] ?? "0", 2));
    }
    assert.deepEqual(decodeSevenBits(text).subarray(0, 700), bytes);
  });
});

test("gzip is unpacked, without what fills the last character", async () => {
  const packed = gzipSync("a page of numbers ".repeat(40));
  const filled = new Uint8Array([...packed, 0x1f, 0x8b, 0]); // which would be read as the beginning of more
  assert.equal(new TextDecoder().decode(await gunzip(filled, packed.length)), "a page of numbers ".repeat(40));
});

test("what is not gzip is refused", async () => {
  await assert.rejects(gunzip(Uint8Array.of(1, 2, 3), 3));
});

describe("bytes to numbers", () => {
  test("bytes, from where they stand", () => {
    const ref = { at: 1, shape: [3], step: 0.5, type: /** @type {const} */ ("u8") };
    assert.deepEqual([...decodeArray(Uint8Array.of(9, 0, 128, 255), 0, ref)], [0, 64, 127.5]);
    assert.deepEqual([...decodeArray(Uint8Array.of(1, 1, 1, 1, 9, 0, 128, 255), 2, ref)], [0, 64, 127.5]);
  });

  test("bits, the highest first", () => {
    const ref = { at: 1, shape: [2, 5], step: 1, type: /** @type {const} */ ("bit") };
    assert.deepEqual([...decodeArray(Uint8Array.of(0xff, 0b10100001, 0b11000000), 0, ref)], [1, 0, 1, 0, 0, 0, 0, 1, 1, 1]);
  });

  test("32 bits, also where no multiple of four begins", () => {
    const bytes = new Uint8Array(9);
    const view = new DataView(bytes.buffer);
    view.setInt32(1, -70000, true);
    view.setInt32(5, 2 ** 20, true);
    const inner = new Uint8Array(bytes.buffer, 1);
    assert.deepEqual([...decodeArray(bytes, 0, { at: 1, shape: [2], step: 0.5, type: "i32" })], [-35000, 2 ** 19]);
    assert.deepEqual([...decodeArray(inner, 0, { at: 0, shape: [2], step: 0.5, type: "i32" })], [-35000, 2 ** 19]);
  });

  test("16 bits: low bytes of all arrays before the high ones, both with a sign, each array column by column", () => {
    // A row 5, and rows (1, -1), (300, -300), (127, -32639): 300 is 1 * 256 + 44, -300 is -1 * 256 - 44.
    const low = Int8Array.of(5, 1, 44, 127, -1, -44, -127);
    const high = Int8Array.of(0, 0, 1, 0, 0, -1, -127);
    const bytes = new Uint8Array([...new Uint8Array(low.buffer), ...new Uint8Array(high.buffer), 77]);
    assert.deepEqual([...decodeArray(bytes, 7, { at: 0, shape: [1], step: 1, type: "i16" })], [5]);
    const found = decodeArray(bytes, 7, { at: 1, shape: [3, 2], step: 0.25, type: "i16" });
    assert.deepEqual([...found], [1, -1, 300, -300, 127, -32639].map((each) => each / 4));
    assert.deepEqual([...decodeArray(bytes, 7, { at: 0, shape: [1], step: 2, type: "u8" })], [154]);
  });

  test("none", () => {
    for (const type of /** @type {const} */ (["u8", "bit", "i32", "i16"])) {
      assert.deepEqual([...decodeArray(new Uint8Array(0), 0, { at: 0, shape: [0], step: 1, type })], []);
    }
  });
});
