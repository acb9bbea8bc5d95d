"""The cells of a picture of one head: one weight each where there is room, else pooled weights."""

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

COLOURS = ("#ffffff", "#cbe3ff", "#9bc6f8", "#71a8ea", "#4d8bd6", "#316eba", "#225398", "#1c3970", "#172146")
"""From no weight to the largest: one hue whose lightness (CIELAB) falls in even steps, readable with every colour
vision and in grey print."""

COLOUR_QUANTILE = 0.998
"""The share of pooled cells that stays below the darkest colour: a few cells where a query sees one key alone would
leave the others white."""


@dataclass(frozen=True, eq=False)
class MapCells:
    """The cells of a picture of one head."""

    weights: Float[Tensor, "rows columns"]
    """In float64. A cell of several pairs: the weight of all its keys together, on average over its queries."""
    queries: list[int]
    """The first query of each row, and the end of the last row."""
    keys: list[int]
    """The first key of each column, and the end of the last column."""

    @property
    def exact(self) -> bool:
        """Whether each cell is one weight."""
        return len(self.queries) == self.queries[-1] + 1 and len(self.keys) == self.keys[-1] + 1

    @cached_property
    def vmax(self) -> float:
        """The weight of the darkest colour, as in matplotlib: the largest weight, or of pooled cells a quantile."""
        positive = self.weights[self.weights.isfinite() & (self.weights > 0)]
        if not len(positive):
            return 1.0
        quantile = positive.sort().values[math.ceil(COLOUR_QUANTILE * len(positive)) - 1]
        return float(positive.max() if self.exact else quantile)


def validate_location(shape: tuple[int, ...], batch: int, head: int, query: int | None = None) -> None:
    """Check that a map of this shape has a batch row, a head and a query.

    Raises:
        IndexError: there is no such batch row, head or query.
        ValueError: the map is empty.
    """
    for what, number, limit in (("batch row", batch, shape[0]), ("head", head, shape[1]), ("query", query, shape[2])):
        if number is not None and not 0 <= number < limit:
            raise IndexError(f"there is no {what} {number}: there are {limit}, counted from 0")
    if 0 in shape:
        raise ValueError(f"a map of {shape[2]} queries and {shape[3]} keys shows nothing")


def head_cells(m: AttentionMap | AttentionSummary, batch: int, head: int, rows: int, columns: int) -> MapCells:
    """The cells of one head.

    Args:
        m: the map. A summary has pooled cells; it gives these or larger ones.
        batch: which batch row.
        head: which of the map's heads.
        rows: the largest number of rows.
        columns: the largest number of columns.

    Raises:
        IndexError: there is no such batch row or head.
        ValueError: the map is empty; NaN in a map that is too large to be drawn weight by weight.
    """
    validate_location(m.shape, batch, head)
    queries, keys = m.shape[2:]
    if isinstance(m, AttentionSummary):
        return _merged(m.pooled()[batch, head].double().cpu(), queries, keys, rows, columns)
    rows, columns = min(rows, queries), min(columns, keys)
    single, batch, head = (m, batch, head) if (rows, columns) == (queries, keys) else _single_head(m, batch, head)
    return _cells(_weights(single, rows, columns, batch, head), queries, keys)


def all_head_cells(m: AttentionMap | AttentionSummary, batch: int, rows: int, columns: int) -> list[MapCells]:
    """The cells of every head of a map; see `head_cells`."""
    if isinstance(m, AttentionSummary):
        return [head_cells(m, batch, head, rows, columns) for head in range(m.shape[1])]
    validate_location(m.shape, batch, 0)
    queries, keys = m.shape[2:]
    heads = _weights(m, min(rows, queries), min(columns, keys), batch, slice(None))
    return [_cells(weights, queries, keys) for weights in heads]


def mean_entropy(m: AttentionMap | AttentionSummary, batch: int, head: int) -> float:
    """The entropy of a head in nats, on average over its queries; NaN for weights of NaN."""
    if isinstance(m, AttentionSummary):
        return float(m.entropy()[batch, head].double().mean())
    single, row, number = _single_head(m, batch, head)
    try:
        return float(single.entropy()[row, number].double().mean())
    except ValueError:  # NaN or infinity in q or k
        return math.nan


def map_tokens(m: AttentionMap | AttentionSummary, batch: int) -> tuple[list[str], list[str]] | None:
    """The tokens at the queries and at the keys, if the map has them."""
    if m.tokens is None:
        return None
    queries, keys = (text_tokens(side, batch) for side in m.tokens)
    return queries, keys


def _weights(m: AttentionMap, rows: int, columns: int, batch: int, head: int | slice) -> Tensor:
    return m[batch, head] if (rows, columns) == m.shape[2:] else m.pooled(rows, columns)[batch, head]


def _cells(weights: Tensor, queries: int, keys: int) -> MapCells:
    rows, columns = weights.shape
    return MapCells(weights.double().cpu(), _edges(queries, rows), _edges(keys, columns))


def _single_head(m: AttentionMap, batch: int, head: int) -> tuple[AttentionMap, int, int]:
    """A map of one head alone, which costs less to read; and the batch row and the head in that map.

    A mask that depends on the head stays with the whole map.
    """
    if m.mask is not None and m.mask.batch_heads(*m.shape[2:])[1] is not None:
        return m, batch, head
    return m.select(batch, [head]), 0, 0


def _merged(pooled: Tensor, queries: int, keys: int, rows: int, columns: int) -> MapCells:
    """Larger cells, merged from those of a summary."""
    rows, columns = min(rows, pooled.shape[0]), min(columns, pooled.shape[1])
    sides = [
        [cells[n] for n in _edges(len(cells) - 1, count)]
        for cells, count in ((_edges(queries, pooled.shape[0]), rows), (_edges(keys, pooled.shape[1]), columns))
    ]
    heights = torch.tensor(_edges(queries, pooled.shape[0])).diff().double()
    sums = _sums(_sums(pooled * heights[:, None], rows).T, columns).T
    return MapCells(sums / torch.tensor(sides[0]).diff()[:, None], *sides)


def _sums(cells: Tensor, rows: int) -> Tensor:
    """The sums of the rows that one new row replaces."""
    return torch.stack([cells[start:stop].sum(0) for start, stop in pairwise(_edges(len(cells), rows))])


def _edges(size: int, cells: int) -> list[int]:
    """The first position of each cell, and the end of the last: the cells of `AttentionMap.pooled`."""
    return [n * size // cells for n in range(cells + 1)]
