"""One head of a map as cells for a picture: single weights where there is room, else the weights of several pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import AttentionSummary
from regard.lens.maps.tokens import text_tokens

__all__ = ["COLOURS", "Cells", "cells_of", "cells_of_all", "check_place", "entropy_of", "texts_of"]

COLOURS = ("#ffffff", "#cbe3ff", "#9bc6f8", "#71a8ea", "#4d8bd6", "#316eba", "#225398", "#1c3970", "#172146")
"""From no weight to the largest: one hue whose lightness (CIELAB) falls in even steps, for eyes of all kinds and in
grey print."""

MOST = 0.998
"""In a picture of pooled cells, this share of the cells stays below the darkest colour: a few corners, where a query
sees one key alone, would leave the rest white."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A picture of one head."""

    weights: Float[Tensor, "rows columns"]
    """In float64. A cell of several pairs: the weights that one of its queries, on average, gives to all its keys."""
    queries: list[int]
    """Where each row begins, and where the last ends."""
    keys: list[int]
    """Likewise for the columns."""

    @property
    def single(self) -> bool:
        """Whether each cell is one weight."""
        return len(self.queries) == self.queries[-1] + 1 and len(self.keys) == self.keys[-1] + 1

    @cached_property
    def high(self) -> float:
        """What the darkest colour stands for: the largest weight, or what few cells are above."""
        some = self.weights[self.weights.isfinite() & (self.weights > 0)]
        if not len(some):
            return 1.0
        return float(some.max() if self.single else some.sort().values[math.ceil(MOST * len(some)) - 1])


def check_place(shape: tuple[int, ...], batch: int, head: int, query: int | None = None) -> None:
    """Refuse what a map of this shape does not have.

    Raises:
        IndexError: no such batch row, head or query.
        ValueError: the map is empty.
    """
    for what, number, limit in (("batch row", batch, shape[0]), ("head", head, shape[1]), ("query", query, shape[2])):
        if number is not None and not 0 <= number < limit:
            raise IndexError(f"there is no {what} {number}: there are {limit}, counted from 0")
    if 0 in shape:
        raise ValueError(f"a map of {shape[2]} queries and {shape[3]} keys shows nothing")


def cells_of(m: AttentionMap | AttentionSummary, batch: int, head: int, rows: int, columns: int) -> Cells:
    """The picture of a head.

    Args:
        m: the map. A summary gives what it kept, or larger cells.
        batch: which batch row.
        head: which of the map's heads.
        rows: at most so many cells from top to bottom.
        columns: at most so many from left to right.

    Raises:
        IndexError: no such batch row or head.
        ValueError: the map is empty; NaN in a map that is too large to be drawn weight by weight.
    """
    check_place(m.shape, batch, head)
    queries, keys = m.shape[2:]
    if isinstance(m, AttentionSummary):
        return _joined(m.pooled()[batch, head].double().cpu(), queries, keys, rows, columns)
    rows, columns = min(rows, queries), min(columns, keys)
    one, batch, head = (m, batch, head) if (rows, columns) == (queries, keys) else _alone(m, batch, head)
    return _cut(_weights(one, rows, columns, batch, head), queries, keys)


def cells_of_all(m: AttentionMap | AttentionSummary, batch: int, rows: int, columns: int) -> list[Cells]:
    """The pictures of every head of a map: see `cells_of`."""
    if isinstance(m, AttentionSummary):
        return [cells_of(m, batch, head, rows, columns) for head in range(m.shape[1])]
    check_place(m.shape, batch, 0)
    queries, keys = m.shape[2:]
    every = _weights(m, min(rows, queries), min(columns, keys), batch, slice(None))
    return [_cut(weights, queries, keys) for weights in every]


def entropy_of(m: AttentionMap | AttentionSummary, batch: int, head: int) -> float:
    """The entropy of a head in nats, on average over its queries; NaN where a weight is none."""
    if isinstance(m, AttentionSummary):
        return float(m.entropy()[batch, head].double().mean())
    one, row, number = _alone(m, batch, head)
    try:
        return float(one.entropy()[row, number].double().mean())
    except ValueError:  # NaN or infinity in q or k
        return math.nan


def texts_of(m: AttentionMap | AttentionSummary, batch: int) -> tuple[list[str], list[str]] | None:
    """The tokens at the queries and at the keys, if the map has them."""
    if m.tokens is None:
        return None
    queries, keys = (text_tokens(side, batch) for side in m.tokens)
    return queries, keys


def _weights(m: AttentionMap, rows: int, columns: int, batch: int, head: int | slice) -> Tensor:
    return m[batch, head] if (rows, columns) == m.shape[2:] else m.pooled(rows, columns)[batch, head]


def _cut(weights: Tensor, queries: int, keys: int) -> Cells:
    rows, columns = weights.shape
    return Cells(weights.double().cpu(), _even(queries, rows), _even(keys, columns))


def _alone(m: AttentionMap, batch: int, head: int) -> tuple[AttentionMap, int, int]:
    """The map of one head, so that a statistic costs as much as one head; and its batch row and head in that map.

    A mask that depends on the head stays with the whole map.
    """
    if m.mask is not None and m.mask.batch_heads(*m.shape[2:])[1] is not None:
        return m, batch, head
    return m.select(batch, [head]), 0, 0


def _joined(kept: Tensor, queries: int, keys: int, rows: int, columns: int) -> Cells:
    """Cells made of those that were kept."""
    rows, columns = min(rows, kept.shape[0]), min(columns, kept.shape[1])
    sides = [
        [cells[n] for n in _even(len(cells) - 1, count)]
        for cells, count in ((_even(queries, kept.shape[0]), rows), (_even(keys, kept.shape[1]), columns))
    ]
    heights = torch.tensor(_even(queries, kept.shape[0])).diff().double()
    sums = _sums(_sums(kept * heights[:, None], rows).T, columns).T
    return Cells(sums / torch.tensor(sides[0]).diff()[:, None], *sides)


def _sums(cells: Tensor, rows: int) -> Tensor:
    """The sums of rows that become one."""
    return torch.stack([cells[start:stop].sum(0) for start, stop in pairwise(_even(len(cells), rows))])


def _even(size: int, cells: int) -> list[int]:
    """Where so many cells begin, as even as they can be, and where the last ends: as `AttentionMap.pooled` cuts."""
    return [n * size // cells for n in range(cells + 1)]
