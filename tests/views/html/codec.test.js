import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { decodeArray, decodeSevenBits, gunzip } from "../../../src/regard/views/html/static/core/codec.js";

test("seven bits a character, the first bits first; a character beyond holds one that may not be written", () => {
  // 1000001 1100001 0... : "A" and "a" hold 10000011 1000010, and the rest of the second byte is not there yet.
  assert.deepEqual([...decodeSevenBits("Aa")], [0b10000011]);
  assert.deepEqual([...decodeSevenBits("Aa\x02")], [0b10000011, 0b10000100]);
  assert.deepEqual([...decodeSevenBits(`${String.fromCharCode(0x100 + (3 << 7) + 0x55)}`)], [0b01111001]);
});

test("gzip is unpacked, without what fills the last character, and nothing else", async () => {
  const packed = gzipSync("a page of numbers ".repeat(40));
  const filled = new Uint8Array([...packed, 0x1f, 0x8b, 0]); // which would be read as the beginning of more
  assert.equal(new TextDecoder().decode(await gunzip(filled, packed.length)), "a page of numbers ".repeat(40));
  await assert.rejects(gunzip(Uint8Array.of(1, 2, 3), 3));
});

test("32 bits, also where no multiple of four begins", () => {
  const view = new DataView(new ArrayBuffer(9));
  view.setInt32(1, -70000, true);
  view.setInt32(5, 2 ** 20, true);
  for (const offset of [0, 1]) {
    const ref = { at: 1 - offset, shape: [2], step: 0.5, type: /** @type {const} */ ("i32") };
    assert.deepEqual([...decodeArray(new Uint8Array(view.buffer, offset), 0, ref)], [-35000, 2 ** 19]);
  }
});
