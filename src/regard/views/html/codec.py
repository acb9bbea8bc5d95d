"""The encoding of numbers in a page: integers as byte planes, gzip, and text of seven bits a character.

static/core/codec.js decodes it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_INT16 = 127 * 256 + 127
"""The largest 16-bit integer here: both of its bytes are signed."""

FORBIDDEN_CODES = (0x00, 0x0A, 0x0D, ord("<"))
"""Characters of seven bits that a script element cannot hold, or that an editor may change: NUL, line ends, "<"."""

PAIR_OFFSET = 0x100
"""A character from this code point on stands for a forbidden code and the seven bits after it. In UTF-8 it takes two
bytes, as the two codes would, so that the text has 8/7 times the bytes; base64 has 8/6 times."""

ArrayRef = dict[str, Any]
"""The location of an array in the numbers of a page: at, shape, step, type; `Ref` in static/core/codec.js."""


class BinaryPack:
    """The numbers of a page, array by array.

    The low bytes of all 16-bit integers come first, then their high bytes, then all other arrays: bytes of one kind
    compress best next to one another. For the same reason the columns of such an array are stored one after another.
    """

    def __init__(self) -> None:
        self._low: list[bytes] = []
        self._high: list[bytes] = []
        self._rest: list[bytes] = []
        self._offsets: dict[tuple[str, bytes], int] = {}
        self.num_int16 = 0
        """The number of 16-bit integers."""
        self._length = 0

    def int16(self, t: Tensor, step: float | int) -> ArrayRef:
        """Add numbers as multiples of a step, from ``-MAX_INT16`` to ``MAX_INT16``."""
        integers = quantize_int16(t, step)
        low, high = byte_planes(integers.reshape(-1, t.shape[-1]).T if t.ndim > 1 else integers)
        self._low.append(low.tobytes())
        self._high.append(high.tobytes())
        self.num_int16 += integers.size
        return {"at": self.num_int16 - integers.size, "shape": list(t.shape), "step": step, "type": "i16"}

    def int32_scaled(self, t: Tensor) -> ArrayRef:
        """Add numbers with a precision of 1e-9 of the largest."""
        step = max(float(t.abs().max()) if t.numel() else 0.0, 1e-9) / 2**30
        return self._add((t.double() / step).round().cpu().numpy().astype("<i4"), list(t.shape), step, "i32")

    def int32(self, t: Tensor) -> ArrayRef:
        """Add integers."""
        return self._add(t.cpu().numpy().astype("<i4"), list(t.shape), 1, "i32")

    def uint8(self, t: Tensor) -> ArrayRef:
        """Add numbers from 0 to 1, in steps of 1/255."""
        return self._add((t * 255).round().cpu().numpy().astype(np.uint8), list(t.shape), 1 / 255, "u8")

    def bits(self, t: Tensor) -> ArrayRef:
        """Add booleans."""
        return self._add(np.packbits(t.cpu().numpy()), list(t.shape), 1, "bit")

    def bytes(self) -> bytes:
        """All arrays, in the order in which a page has them."""
        return b"".join([*self._low, *self._high, *self._rest])

    def _add(self, array: np.ndarray, shape: list[int], step: float | int, type_: str) -> ArrayRef:
        """Equal arrays, such as a mask that layers share, are stored once."""
        data = array.tobytes()
        at = self._offsets.setdefault((type_, data), self._length)
        if at == self._length and data:
            self._rest.append(data)
            self._length += len(data)
        return {"at": at, "shape": shape, "step": step, "type": type_}


def quantize_int16(t: Tensor, step: float | int) -> np.ndarray:
    """The nearest multiples of a step."""
    numbers = t.to(torch.promote_types(t.dtype, torch.float32)).cpu().numpy()
    return np.rint(numbers / step).clip(-MAX_INT16, MAX_INT16).astype(np.int16)


def byte_planes(integers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high bytes of 16-bit integers, both signed, so that the high byte of a small number is 0."""
    high = (integers.astype(np.int32) + 128) >> 8
    return (integers - (high << 8)).astype(np.int8), high.astype(np.int8)


def encode_json(data: Any) -> bytes:
    """Data as JSON, short and in a file's Unicode."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return valid_unicode(text).encode()


def valid_unicode(text: str) -> str:
    """A text without lone surrogates, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def gzip_bytes(data: bytes) -> bytes:
    """Data compressed by gzip; equal data give equal bytes."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, 31, 9)
    return compressor.compress(data) + compressor.flush()


def encode_seven_bits(data: bytes) -> str:
    """Bytes as a text that a script element can hold: seven bits in each character."""
    # Seven bytes are eight codes of seven bits.
    rows = np.pad(np.frombuffer(data, np.uint8), (0, -len(data) % 7)).reshape(-1, 7)
    words = np.pad(rows, ((0, 0), (1, 0))).view(">u8").astype(np.uint64)
    codes = (words >> np.arange(49, -1, -7, dtype=np.uint64)).astype(np.uint16).ravel() & 0x7F
    codes = np.append(codes[: -(-len(data) * 8 // 7)], np.uint16(0))  # a last forbidden code forms a pair with this
    forbidden = np.array([code in FORBIDDEN_CODES for code in range(128)])[codes]
    forbidden[-1] = False
    # A forbidden code forms a pair with the code after it, so in a run of forbidden codes every second begins a pair.
    at = np.flatnonzero(forbidden)
    first = np.diff(at, prepend=-2) != 1
    run_starts = np.maximum.accumulate(np.where(first, at, -1))
    pairs = at[(at - run_starts) % 2 == 0]
    codes[pairs] = PAIR_OFFSET + (np.searchsorted(FORBIDDEN_CODES, codes[pairs]) << 7) + codes[pairs + 1]
    remaining = np.ones(len(codes), bool)
    remaining[pairs + 1] = False
    remaining[-1] = False
    return codes[remaining].astype("<u2").tobytes().decode("utf-16-le")
