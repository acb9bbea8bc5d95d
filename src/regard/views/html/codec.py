"""How numbers travel in a page: integers in byte planes, gzip, and text of seven bits a character.

The other half, which reads, is static/core/codec.js.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["LARGEST", "Numbers", "packed", "seven_bits"]

LARGEST = 127 * 256 + 127
"""The largest integer of a number of 16 bits: both of its bytes have a sign."""

FORBIDDEN = (0x00, 0x0A, 0x0D, ord("<"))
"""What seven bits may say and a script element may not hold, or an editor may change: NUL, line ends, "<"."""

PAIR = 0x100
"""From this code point on a character holds one of those and the seven bits behind it. It takes two bytes, as the two
would, so that the text is 8/7 of the bytes and no more; base64 takes 8/6."""

Ref = dict[str, Any]
"""Where an array stands among the numbers of a page: at, shape, step, type; what static/core/codec.js calls Ref."""


class Numbers:
    """The numbers of a page, added array by array.

    First stand the low bytes of all numbers of 16 bits, then their high bytes, then everything else: bytes of a kind
    side by side pack best. Of arrays of such numbers each column stands together, for the same reason.
    """

    def __init__(self) -> None:
        self._low: list[bytes] = []
        self._high: list[bytes] = []
        self._rest: list[bytes] = []
        self._known: dict[tuple[str, bytes], int] = {}
        self.shorts = 0
        """How many numbers of 16 bits there are."""
        self._length = 0

    def short(self, t: Tensor, step: float | int) -> Ref:
        """Numbers that are kept as multiples of a step, at most `LARGEST` of them."""
        integers = shorts(t, step)
        low, high = planes(integers.reshape(-1, t.shape[-1]).T if t.ndim > 1 else integers)
        self._low.append(low.tobytes())
        self._high.append(high.tobytes())
        self.shorts += integers.size
        return {"at": self.shorts - integers.size, "shape": list(t.shape), "step": step, "type": "i16"}

    def fine(self, t: Tensor) -> Ref:
        """Numbers that are kept to a relative 1e-9 of the largest."""
        step = max(float(t.abs().max()) if t.numel() else 0.0, 1e-9) / 2**30
        return self._add((t.double() / step).round().cpu().numpy().astype("<i4"), list(t.shape), step, "i32")

    def whole(self, t: Tensor) -> Ref:
        """Integers."""
        return self._add(t.cpu().numpy().astype("<i4"), list(t.shape), 1, "i32")

    def shares(self, t: Tensor) -> Ref:
        """Numbers from 0 to 1, to a 255th."""
        return self._add((t * 255).round().cpu().numpy().astype(np.uint8), list(t.shape), 1 / 255, "u8")

    def bits(self, t: Tensor) -> Ref:
        """True and False."""
        return self._add(np.packbits(t.cpu().numpy()), list(t.shape), 1, "bit")

    def bytes(self) -> bytes:
        """All of them, in the order in which a page has them."""
        return b"".join([*self._low, *self._high, *self._rest])

    def _add(self, array: np.ndarray, shape: list[int], step: float | int, kind: str) -> Ref:
        """What is there already, a mask that layers share, stands there once."""
        data = array.tobytes()
        at = self._known.setdefault((kind, data), self._length)
        if at == self._length and data:
            self._rest.append(data)
            self._length += len(data)
        return {"at": at, "shape": shape, "step": step, "type": kind}


def shorts(t: Tensor, step: float | int) -> np.ndarray:
    """The multiples of a step that are nearest to some numbers."""
    numbers = t.to(torch.promote_types(t.dtype, torch.float32)).cpu().numpy()
    return np.rint(numbers / step).clip(-LARGEST, LARGEST).astype(np.int16)


def planes(integers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high bytes of integers of 16 bits, both with a sign: the high byte of a small number is 0."""
    high = (integers.astype(np.int32) + 128) >> 8
    return (integers - (high << 8)).astype(np.int8), high.astype(np.int8)


def packed(data: bytes) -> bytes:
    """As gzip packs it; the same bytes for the same data."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31, 9)
    return packer.compress(data) + packer.flush()


def seven_bits(data: bytes) -> str:
    """Bytes as a text that may stand in a script element: seven bits in each character."""
    # Seven bytes are eight sevens.
    rows = np.pad(np.frombuffer(data, np.uint8), (0, -len(data) % 7)).reshape(-1, 7)
    words = np.pad(rows, ((0, 0), (1, 0))).view(">u8").astype(np.uint64)
    sevens = (words >> np.arange(49, -1, -7, dtype=np.uint64)).astype(np.uint16).ravel() & 0x7F
    codes = np.append(sevens[: -(-len(data) * 8 // 7)], np.uint16(0))  # the last is what stands behind a forbidden one
    bad = np.array([code in FORBIDDEN for code in range(128)])[codes]
    bad[-1] = False
    # One that follows a forbidden one travels with it. In a run of them it is every second that takes the next along.
    at = np.flatnonzero(bad)
    first = np.diff(at, prepend=-2) != 1
    begins = np.maximum.accumulate(np.where(first, at, -1))
    leads = at[(at - begins) % 2 == 0]
    codes[leads] = PAIR + (np.searchsorted(FORBIDDEN, codes[leads]) << 7) + codes[leads + 1]
    stays = np.ones(len(codes), bool)
    stays[leads + 1] = False
    stays[-1] = False
    return codes[stays].astype("<u2").tobytes().decode("utf-16-le")
