"""The attention of one text of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.mask import Mask
from regard.attention.mask.base import And
from regard.attention.mask.geometry import Predicate, Tile, TileBounds, TileGrid
from regard.lens.maps.map import AttentionMap, OutputSample

__all__ = ["select_batch"]


def select_batch(m: AttentionMap, batch: int) -> AttentionMap:
    """The map of one batch row as it is now: it shares the tensors of the whole, and looks for changes no more.

    Raises:
        IndexError: no such batch row.
        RuntimeError: the tensors were changed since the model ran.
    """
    if not 0 <= batch < m.shape[0]:
        raise IndexError(f"there is no batch row {batch}: the map has {m.shape[0]}, counted from 0")
    m.ensure_unchanged()
    mask, bias, sample = m.mask, m.bias, m.sample
    mask = None if mask is None else _of_row(mask, batch, *m.shape[2:])
    if isinstance(bias, Tensor) and bias.ndim == 4 and len(bias) > 1:
        bias = bias[batch : batch + 1]
    if sample is not None:
        own = sample.batch == batch
        factor = None if sample.factor is None else sample.factor[own]
        sample = OutputSample(
            torch.zeros_like(sample.batch[own]), sample.query[own], sample.output[own], factor, sample.finish
        )
    one = slice(batch, batch + 1)
    made = AttentionMap(
        m.q[one],
        m.k[one],
        None if m.v is None else m.v[one],
        mask,
        **{**m.score_options, "bias": bias},
        dropout=m.dropout,
        sample=sample,
        kernel=m.kernel,
    )
    if m.shape[0] == 1:
        made.answer_cache = m.answer_cache  # what is known of all of them is known of the one
    if m.tokens is not None:
        queries, keys = ([tokens[batch]] if not isinstance(tokens[0], str) else tokens for tokens in m.tokens)
        made.label(queries, keys)
    return made


def _of_row(mask: Mask, batch: int, queries: int, keys: int) -> Mask:
    """What a mask says of one batch row; the parts that say the same of all stay what they are, and fast."""
    if isinstance(mask, And):
        return _of_row(mask.left, batch, queries, keys) & _of_row(mask.right, batch, queries, keys)
    return mask if mask.batch_heads(queries, keys)[0] is None else _OneRow(mask, batch)


@dataclass(frozen=True)
class _OneRow(Mask):
    mask: Mask
    batch: int

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        may = self.mask.evaluate(tile)
        return may[self.batch] if may.ndim == 4 and len(may) > 1 else may

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        sees = self.mask.predicate(queries, keys, device)
        return lambda b, h, query, key: sees(torch.full_like(b, self.batch), h, query, key)

    def bounds(self, grid: TileGrid) -> TileBounds:
        known = self.mask.bounds(grid)
        some, every = (
            t[self.batch] if t.ndim == 4 and len(t) > 1 else t for t in (known.any_allowed, known.all_allowed)
        )
        return TileBounds(some, every)

    def validate(self, queries: int, keys: int) -> None:
        self.mask.validate(queries, keys)

    def __repr__(self) -> str:
        return f"{self.mask!r} of batch row {self.batch}"
