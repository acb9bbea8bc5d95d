"""Tensors, masks and biases as facts that JSON can hold, each stored once, and back.

A mask or a bias comes back as it was. One that only a function knows, `mask.where` or a bias of one's own, comes back
as the tensor of what the function said, if that is small enough.
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
from regard.attention.mask.kinds import Allowed, Band, Blocked, Padding, Prefix
from regard.attention.positions import ALiBi, T5Relative
from regard.errors import InputError

__all__ = ["LARGEST", "JsonDict", "RecordingReader", "RecordingWriter"]

LARGEST = 64 * 2**20
"""The most bytes that a mask or a bias may take that is only known as a function of positions."""

_AT_ONCE = 2**24
"""How many pairs of such a function are asked for at once."""

JsonDict = dict[str, Any]


class RecordingWriter:
    """Collects tensors, masks and biases, each once, and says by which facts they will be found."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.masks: list[JsonDict] = []
        self.biases: list[JsonDict] = []
        self._names: dict[tuple[Any, ...], str] = {}
        self._places: dict[tuple[int, int, int], int] = {}
        self._held: list[object] = []  # so that no identity is given twice

    def tensor(self, t: Tensor | None) -> JsonDict | None:
        """A tensor, and the shape to expand it to where an axis repeats the same numbers."""
        if t is None:
            return None
        return self._stored(t.detach(), _packed if t.dtype == torch.bool and t.ndim else lambda once: once)

    def _stored(self, t: Tensor, how: Callable[[Tensor], Tensor]) -> JsonDict:
        shape = list(t.shape)
        for axis, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
            if stride == 0 and size > 1:
                t = t.narrow(axis, 0, 1)
        key = (t.data_ptr(), str(t.device), t.dtype, t.shape, t.stride())
        if key not in self._names:
            self._held.append(t)
            self._names[key] = name = str(len(self.tensors))
            # In a file every tensor has its own memory, in order.
            self.tensors[name] = how(t).to("cpu", copy=True, memory_format=torch.contiguous_format)
        facts: JsonDict = {"tensor": self._names[key]}
        if t.dtype == torch.bool and t.ndim:
            facts["bits"] = list(t.shape)
        return facts if shape == list(t.shape) else {**facts, "shape": shape}

    def mask(self, mask: Mask | None, queries: int, keys: int) -> int | None:
        """The place of a mask among those that are kept.

        Raises:
            InputError: a mask that only a function knows, and that is too large to be written out.
        """
        return self._once(mask, (queries, keys), self.masks, lambda: self._facts(mask, queries, keys))

    def _facts(self, mask: Mask | None, queries: int, keys: int) -> JsonDict:
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
            case Allowed():
                kind = "blocked" if isinstance(mask, Blocked) else "allowed"
                return {kind: self.tensor(mask.tensor)}
        assert mask is not None
        packed, shape = _written_out(mask, queries, keys)
        return {"allowed": {**self._stored(packed, lambda once: once), "bits": shape}}

    def bias(self, bias: Tensor | PositionBias | None, queries: int, keys: int, device: torch.device) -> int | None:
        """The place of a bias among those that are kept; None for none.

        Raises:
            InputError: a bias that only a function knows, and that is too large to be written out.
        """
        return self._once(bias, (queries, keys), self.biases, lambda: self._bias(bias, queries, keys, device))

    def _bias(self, bias: Tensor | PositionBias | None, queries: int, keys: int, device: torch.device) -> JsonDict:
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
        if size > LARGEST:
            raise InputError(_too_large(bias, queries, keys, size, "regard.positions.ALiBi or T5Relative"))
        return {"table": self.tensor(bias.dense(queries, keys, device=device))}

    def _once(
        self, value: object, size: tuple[int, int], kept: list[JsonDict], facts: Callable[[], JsonDict]
    ) -> int | None:
        if value is None:
            return None
        key = (id(value), *size)
        if key not in self._places:
            made = facts()
            self._held.append(value)
            self._places[key] = len(kept)
            kept.append(made)
        return self._places[key]


class RecordingReader:
    """What a `RecordingWriter` collected, from a file that was opened."""

    def __init__(self, tensors: dict[str, Tensor], masks: list[JsonDict], biases: list[JsonDict]) -> None:
        self._tensors = tensors
        self._bits: dict[str, Tensor] = {}
        self._masks: list[Mask] = []
        for of_mask in masks:
            self._masks.append(self._mask(of_mask))  # of masks that stand before it
        self._biases = [self._bias(facts) for facts in biases]

    def tensor(self, facts: JsonDict | None) -> Tensor | None:
        """A tensor; one object for each of its names."""
        return None if facts is None else self._tensor(facts)

    def mask(self, place: int | None) -> Mask | None:
        """A mask by its place."""
        return None if place is None else self._masks[place]

    def bias(self, place: int | None) -> Tensor | PositionBias | None:
        """A bias by its place."""
        return None if place is None else self._biases[place]

    def _tensor(self, facts: JsonDict) -> Tensor:
        t = self._tensors[facts["tensor"]]
        if "bits" in facts:
            if facts["tensor"] not in self._bits:
                self._bits[facts["tensor"]] = _unpacked(t, facts["bits"])
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
            case {"band": [before, after, offset]}:
                return Band(before, after, offset)
            case {"padding": lengths, "longest": longest}:
                return Padding(self._tensor(lengths), longest)
            case {"documents": ids}:
                return Documents(self._tensor(ids), self.tensor(facts.get("keys")))
            case {"prefix": lengths, "longest": longest, "each": each}:
                return Prefix(self._tensor(lengths), longest, each)
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
                with torch.device("meta"):  # where drawing the first numbers takes none from the caller's generator
                    bias = T5Relative(**sizes)
                bias.weight = torch.nn.Parameter(self._tensor(weight), requires_grad=False)
                return bias
        raise ValueError(f"a bias {facts!r}")


def _written_out(mask: Mask, queries: int, keys: int) -> tuple[Tensor, list[int]]:
    """A mask that is known as a function only: its bits, and the shape that they have as a tensor."""
    lead = mask.evaluate(Tile(queries, keys, (0, min(1, queries)), (0, min(1, keys)))).shape[:-2]
    size = lead.numel() * queries * -(-keys // 8)
    if size > LARGEST:
        raise InputError(_too_large(mask, queries, keys, size, "causal, window, padding, documents, prefix"))
    rows = max(1, _AT_ONCE // max(1, lead.numel() * keys))
    parts = [
        _packed(mask.evaluate(tile).expand(*lead, min(rows, queries - first), keys))
        for first in range(0, queries, rows)
        for tile in [Tile(queries, keys, (first, min(first + rows, queries)), (0, keys))]
    ]
    empty = torch.zeros(*lead, 0, -(-keys // 8), dtype=torch.uint8)
    return torch.cat([empty, *parts], dim=-2), [*lead, queries, keys]


def _packed(t: Tensor) -> Tensor:
    """Eight booleans of a row to a byte."""
    return torch.from_numpy(np.packbits(t.cpu().numpy(), axis=-1))


def _unpacked(packed: Tensor, shape: Sequence[int]) -> Tensor:
    bits = np.unpackbits(packed.numpy(), axis=-1, count=shape[-1])
    if list(bits.shape) != list(shape):
        raise ValueError(f"a mask of shape {list(bits.shape)}, not {list(shape)}")
    return torch.from_numpy(bits.view(bool))


def _too_large(what: object, queries: int, keys: int, size: int, others: str) -> str:
    return (
        f"{what!r} is known as a function of positions only. Written out for {queries} queries and {keys} keys it "
        f"takes {size / 2**20:.0f} MiB, and a recording keeps up to {LARGEST // 2**20}: use others ({others}), or "
        'watch with keep="summary"'
    )
