"""A part of a map's inputs: one text of the batch, some heads, the queries that are no padding."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention import mask as masks
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.attention.mask.base import And
from regard.attention.mask.geometry import Predicate, Tile, TileBounds, TileGrid
from regard.lens.maps.inputs import AttentionInputs

CACHED_BY_HEAD = ("lse", "entropy", "received")
"""Cached answers (batch, heads, ...) in which each batch row and head depends on itself only."""

Inputs = TypeVar("Inputs", bound=AttentionInputs)


def select(inputs: Inputs, batch: int | None = None, heads: Sequence[int] | None = None) -> Inputs:
    """The inputs of one batch row, of some heads, or of both; see `AttentionMap.select`.

    Raises:
        IndexError: no such batch row or head.
        RuntimeError: a batch row of tensors that were changed since the model ran.
    """
    part = copy(inputs)
    part.answer_cache, part.kernel_lse = {}, None
    # By row and by head these answers are the part's own.
    answers = {name: inputs.answer_cache[name] for name in CACHED_BY_HEAD if name in inputs.answer_cache}
    if batch is not None:
        _select_batch(part, batch)
        answers = {name: t[batch : batch + 1] for name, t in answers.items()}
        if inputs.shape[0] == 1:
            part.answer_cache = inputs.answer_cache
    if heads is not None:
        index = torch.tensor(heads, device=part.device)
        part.answer_cache = {name: t[:, index] for name, t in answers.items()}
        _select_heads(part, index)
    elif batch is not None and inputs.shape[0] > 1:
        part.answer_cache = answers
    return part


def without_padding(inputs: Inputs, valid: Tensor) -> Inputs:
    """The inputs with a mask in which padding attends to nothing; see `AttentionMap.without_padding`.

    Raises:
        TypeError: not boolean, and not 0 and 1.
        ValueError: another shape than (batch, queries).
    """
    shape = (inputs.shape[0], inputs.shape[2])
    if not isinstance(valid, Tensor) or valid.is_floating_point() or not bool(((valid == 0) | (valid == 1)).all()):
        raise TypeError(f"valid must be a boolean tensor {shape}, or one of 0 and 1; got {valid!r}")
    if tuple(valid.shape) != shape:
        raise ValueError(f"valid must be {shape} (batch, queries); got {tuple(valid.shape)}")
    rows = masks.allowed(valid.to(inputs.device).bool()[:, None, :, None])
    part = copy(inputs)
    part.answer_cache, part.kernel_lse = {}, None
    part.mask = rows if inputs.mask is None else inputs.mask & rows
    return part


def _select_batch(part: AttentionInputs, batch: int) -> None:
    if not 0 <= batch < part.shape[0]:
        raise IndexError(f"there is no batch row {batch}: the map has {part.shape[0]}, counted from 0")
    part.ensure_unchanged()
    part._ensure_unchanged = None
    if part.mask is not None:
        part.mask = _mask_of_row(part.mask, batch, *part.shape[2:])
    if isinstance(part.bias, Tensor) and part.bias.ndim == 4 and len(part.bias) > 1:
        part.bias = part.bias[batch : batch + 1]
    if (sample := part.sample) is not None:
        own = sample.batch == batch
        factor = None if sample.dropout_factor is None else sample.dropout_factor[own]
        zeros = torch.zeros_like(sample.batch[own])
        part.sample = replace(
            sample, batch=zeros, query=sample.query[own], output=sample.output[own], dropout_factor=factor
        )
    row = slice(batch, batch + 1)
    part.q, part.k, part.v = part.q[row], part.k[row], None if part.v is None else part.v[row]


def _select_heads(part: AttentionInputs, index: Tensor) -> None:
    size = part.shape[2:]
    if part.mask is not None and part.mask.batch_heads(*size)[1] not in (None, 1):
        part.mask = masks.allowed(part.mask.dense(*size)[..., index, :, :])
    if isinstance(part.bias, PositionBias):
        part.bias = HeadsBias(part.bias, index)
    elif part.bias is not None and part.bias.ndim > 2 and part.bias.shape[-3] > 1:
        part.bias = part.bias[..., index, :, :]
    if (sample := part.sample) is not None:
        # The output of a whole layer verifies none of its heads alone.
        factor = None if sample.dropout_factor is None else sample.dropout_factor[:, index]
        part.sample = (
            None
            if sample.transform is not None
            else replace(sample, output=sample.output[:, index], dropout_factor=factor)
        )
    kv_heads = index // (part.q.shape[1] // part.k.shape[1])
    part.q, part.k, part.v = part.q[:, index], part.k[:, kv_heads], None if part.v is None else part.v[:, kv_heads]
    part.sinks = None if part.sinks is None else part.sinks[index]


class HeadsBias(PositionBias):
    """A bias by position, of some heads."""

    def __init__(self, bias: PositionBias, index: Tensor) -> None:
        super().__init__()
        self.bias, self.index, self.num_heads = bias, index, len(index)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """See `PositionBias`."""
        return self.bias(query, key)[self.index]  # type: ignore[no-any-return]


def _mask_of_row(mask: Mask, batch: int, queries: int, keys: int) -> Mask:
    """The mask of one batch row; parts that are the same for all rows stay as they are, and fast."""
    if isinstance(mask, And):
        return _mask_of_row(mask.left, batch, queries, keys) & _mask_of_row(mask.right, batch, queries, keys)
    return mask if mask.batch_heads(queries, keys)[0] is None else _BatchRowMask(mask, batch)


@dataclass(frozen=True)
class _BatchRowMask(Mask):
    mask: Mask
    batch: int

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        return self._row(self.mask.evaluate(tile))

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        allowed = self.mask.predicate(queries, keys, device)
        return lambda b, h, query, key: allowed(torch.full_like(b, self.batch), h, query, key)

    def bounds(self, grid: TileGrid) -> TileBounds:
        bounds = self.mask.bounds(grid)
        return TileBounds(self._row(bounds.any_allowed), self._row(bounds.all_allowed))

    def _row(self, t: Tensor) -> Tensor:
        return t[self.batch] if t.ndim == 4 and len(t) > 1 else t

    def validate(self, queries: int, keys: int) -> None:
        self.mask.validate(queries, keys)

    def __repr__(self) -> str:
        return f"{self.mask!r} of batch row {self.batch}"
