"""Tensors, masks and biases as JSON and a list of tensors, each stored once, and back.

A mask or a bias is read as it was written. One that is a function of positions, `mask.where` or a bias of one's own, is
read as the tensor of the function's results, if that is small enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.bias import PositionBias
from regard.attention.mask.base import And, Mask, Not, Or
from regard.attention.mask.documents import Documents
from regard.attention.mask.geometry import Tile
from regard.attention.mask.kinds import Allowed, Band, Blocked, First, Padding, Prefix
from regard.attention.positions import ALiBi, T5Relative
from regard.errors import InputError

MAX_DENSE_BYTES = 64 * 2**20
"""The largest size, as a tensor, of a mask or a bias that is a function of positions."""

_CHUNK_PAIRS = 2**24
"""The number of pairs that such a function computes at once."""

JsonDict = dict[str, Any]


class RecordingWriter:
    """Collects tensors, masks and biases, each once, and returns the JSON by which a reader finds them."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.masks: list[JsonDict] = []
        self.biases: list[JsonDict] = []
        self._names: dict[tuple[Any, ...], str] = {}
        self._indices: dict[tuple[int, int, int], int] = {}
        self._references: list[object] = []  # so that no id is used twice

    def tensor(self, t: Tensor | None) -> JsonDict | None:
        """A tensor, and the shape to expand it to if an axis repeats the same numbers."""
        if t is None:
            return None
        return self._store(t.detach(), _pack_bits if t.dtype == torch.bool and t.ndim else lambda same: same)

    def _store(self, t: Tensor, encode: Callable[[Tensor], Tensor]) -> JsonDict:
        shape = list(t.shape)
        for axis, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
            if stride == 0 and size > 1:
                t = t.narrow(axis, 0, 1)
        key = (t.data_ptr(), str(t.device), t.dtype, t.shape, t.stride())
        if key not in self._names:
            self._references.append(t)
            self._names[key] = name = str(len(self.tensors))
            # In a file every tensor has its own memory, in order.
            self.tensors[name] = encode(t).to("cpu", copy=True, memory_format=torch.contiguous_format)
        facts: JsonDict = {"tensor": self._names[key]}
        if t.dtype == torch.bool and t.ndim:
            facts["bits"] = list(t.shape)
        return facts if shape == list(t.shape) else {**facts, "shape": shape}

    def mask(self, mask: Mask | None, queries: int, keys: int) -> int | None:
        """The index of a mask among the stored ones; None for none.

        Raises:
            InputError: a function of positions that is too large as a tensor.
        """
        return self._once(mask, (queries, keys), self.masks, lambda: self._mask_json(mask, queries, keys))

    def _mask_json(self, mask: Mask | None, queries: int, keys: int) -> JsonDict:
        match mask:
            case And() | Or():
                return {mask.sign: [self.mask(side, queries, keys) for side in (mask.left, mask.right)]}
            case Not():
                return {"~": self.mask(mask.other, queries, keys)}
            case Band():
                return {"band": [mask.before, mask.after, mask.offset]}
            case Padding():
                return {"padding": self.tensor(mask.lengths), "longest": mask.longest}
            case Documents():
                facts = {"documents": self.tensor(mask.ids)}
                return facts if mask.keys is None else {**facts, "keys": self.tensor(mask.keys)}
            case Prefix():
                return {"prefix": self.tensor(mask.lengths), "longest": mask.longest, "per_row": mask.per_row}
            case First():
                return {"first": mask.count}
            case Allowed():
                kind = "blocked" if isinstance(mask, Blocked) else "allowed"
                return {kind: self.tensor(mask.tensor)}
        assert mask is not None
        packed, shape = _dense_bits(mask, queries, keys)
        return {"allowed": {**self._store(packed, lambda same: same), "bits": shape}}

    def bias(self, bias: Tensor | PositionBias | None, queries: int, keys: int, device: torch.device) -> int | None:
        """The index of a bias among the stored ones; None for none.

        Raises:
            InputError: a function of positions that is too large as a tensor.
        """
        return self._once(bias, (queries, keys), self.biases, lambda: self._bias_json(bias, queries, keys, device))

    def _bias_json(self, bias: Tensor | PositionBias | None, queries: int, keys: int, device: torch.device) -> JsonDict:
        match bias:
            case Tensor():
                return {"table": self.tensor(bias)}
            case ALiBi():
                return {"alibi": bias.num_heads, "dtype": str(bias.slopes.dtype)}
            case T5Relative():
                sizes = ("num_heads", "num_buckets", "max_distance", "bidirectional")
                return {"t5": {name: getattr(bias, name) for name in sizes}, "weight": self.tensor(bias.weight)}
        assert bias is not None
        size = bias.num_heads * queries * keys * 4
        if size > MAX_DENSE_BYTES:
            raise InputError(_too_large(bias, queries, keys, size, "regard.positions.ALiBi or T5Relative"))
        return {"table": self.tensor(bias.dense(queries, keys, device=device))}

    def _once(
        self, value: object, size: tuple[int, int], stored: list[JsonDict], to_json: Callable[[], JsonDict]
    ) -> int | None:
        if value is None:
            return None
        key = (id(value), *size)
        if key not in self._indices:
            facts = to_json()
            self._references.append(value)
            self._indices[key] = len(stored)
            stored.append(facts)
        return self._indices[key]


class RecordingReader:
    """The tensors, masks and biases that a `RecordingWriter` collected."""

    def __init__(self, tensors: dict[str, Tensor], masks: list[JsonDict], biases: list[JsonDict]) -> None:
        self._tensors = tensors
        self._bits: dict[str, Tensor] = {}
        self._masks: list[Mask] = []
        for facts in masks:
            self._masks.append(self._mask(facts))  # which refers to masks before it
        self._biases = [self._bias(facts) for facts in biases]

    def tensor(self, facts: JsonDict | None) -> Tensor | None:
        """A tensor; the same object for the same name."""
        return None if facts is None else self._tensor(facts)

    def mask(self, index: int | None) -> Mask | None:
        """A mask by its index."""
        return None if index is None else self._masks[index]

    def bias(self, index: int | None) -> Tensor | PositionBias | None:
        """A bias by its index."""
        return None if index is None else self._biases[index]

    def _tensor(self, facts: JsonDict) -> Tensor:
        t = self._tensors[facts["tensor"]]
        if "bits" in facts:
            if facts["tensor"] not in self._bits:
                self._bits[facts["tensor"]] = _unpack_bits(t, facts["bits"])
            t = self._bits[facts["tensor"]]
        return t.expand(facts["shape"]) if "shape" in facts else t

    def _mask(self, facts: JsonDict) -> Mask:
        match facts:
            case {"&": [left, right]}:
                return And(self._masks[left], self._masks[right])
            case {"|": [left, right]}:
                return Or(self._masks[left], self._masks[right])
            case {"~": other}:
                return Not(self._masks[other])
            case {"band": [int() | None as before, int() as after, int() | None as offset]} if bool not in map(
                type, (before, after, offset)
            ):
                return Band(before, after, offset)
            case {"padding": lengths, "longest": longest}:
                return Padding(self._tensor(lengths), longest)
            case {"documents": ids}:
                return Documents(self._tensor(ids), self.tensor(facts.get("keys")))
            case {"prefix": lengths, "longest": longest, "per_row": per_row}:
                return Prefix(self._tensor(lengths), longest, per_row)
            case {"first": int() as count} if type(count) is int:
                return First(count)
            case {"allowed": bits}:
                return Allowed(self._tensor(bits))
            case {"blocked": bits}:
                return Blocked(self._tensor(bits))
        raise ValueError(f"a mask {facts!r}")

    def _bias(self, facts: JsonDict) -> Tensor | PositionBias:
        match facts:
            case {"table": table}:
                return self._tensor(table)
            case {"alibi": heads, "dtype": dtype}:
                return ALiBi(heads).to(getattr(torch, dtype.removeprefix("torch.")))
            case {"t5": sizes, "weight": weight}:
                with torch.device("meta"):  # so that the initial weights do not use the caller's random generator
                    bias = T5Relative(**sizes)
                bias.weight = torch.nn.Parameter(self._tensor(weight), requires_grad=False)
                return bias
        raise ValueError(f"a bias {facts!r}")


def _dense_bits(mask: Mask, queries: int, keys: int) -> tuple[Tensor, list[int]]:
    """A mask that is a function of positions: its bits, and their shape as a tensor."""
    lead = mask.evaluate(Tile(queries, keys, (0, min(1, queries)), (0, min(1, keys)))).shape[:-2]
    size = lead.numel() * queries * -(-keys // 8)
    if size > MAX_DENSE_BYTES:
        raise InputError(_too_large(mask, queries, keys, size, "causal, window, padding, documents, prefix, first"))
    rows = max(1, _CHUNK_PAIRS // max(1, lead.numel() * keys))
    parts = [
        _pack_bits(mask.evaluate(tile).expand(*lead, min(rows, queries - first), keys))
        for first in range(0, queries, rows)
        for tile in [Tile(queries, keys, (first, min(first + rows, queries)), (0, keys))]
    ]
    empty = torch.zeros(*lead, 0, -(-keys // 8), dtype=torch.uint8)
    return torch.cat([empty, *parts], dim=-2), [*lead, queries, keys]


def _pack_bits(t: Tensor) -> Tensor:
    """Eight booleans of a row as a byte."""
    return torch.from_numpy(np.packbits(t.cpu().numpy(), axis=-1))


def _unpack_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    bits = np.unpackbits(packed.numpy(), axis=-1, count=shape[-1])
    if list(bits.shape) != list(shape):
        raise ValueError(f"a mask of shape {list(bits.shape)}, not {list(shape)}")
    return torch.from_numpy(bits.view(bool))


def _too_large(what: object, queries: int, keys: int, size: int, others: str) -> str:
    return (
        f"{what!r} is a function of positions. As a tensor for {queries} queries and {keys} keys it takes "
        f"{size / 2**20:.0f} MiB, and a recording keeps up to {MAX_DENSE_BYTES // 2**20}: use others ({others}), or "
        'watch with keep="summary"'
    )
