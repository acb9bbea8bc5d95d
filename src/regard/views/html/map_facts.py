"""The few questions that a page asks of one attention of one text."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.streaming import TopWeights
from regard.lens.maps.summary import SUMMARY_CELLS, AttentionSummary

__all__ = ["Answers"]

AT_ONCE = 2**22
"""Of a map with at most so many weights, each is computed once, and every answer is taken from them."""


class Answers:
    """The answers of a map or a summary.

    A small map is written out once, since each question to a map reads all of it anew.

    Args:
        made: of one text, if it is a map.
        batch: which row of a summary is meant; 0 in a map.
    """

    def __init__(self, made: AttentionMap | AttentionSummary, batch: int) -> None:
        self.made, self.batch = made, batch
        self.weights: Float[Tensor, "heads queries keys"] | None = None
        """Every weight of a small map, until `forget`."""
        if isinstance(made, AttentionMap) and made.shape.numel() <= AT_ONCE:
            self.weights = made[0].float()
        self._pictures: dict[tuple[int, int], Tensor] = {}

    def forget(self) -> None:
        """Let the weights go: of many layers they are many."""
        self.weights = None

    def entropy(self) -> Float[Tensor, "heads queries"]:
        """Of each row, in nats."""
        w = self.weights
        return self.made.entropy()[self.batch] if w is None else torch.special.entr(w).sum(-1)

    def distance(self, first: int) -> Float[Tensor, "heads queries"]:
        """How far back each row looks, on average; 0 where there is nothing to attend to.

        Args:
            first: position of query 0 among the keys.
        """
        w = self.weights
        if w is None:
            return self.made.distance().mean[self.batch]
        query, key = (torch.arange(size, device=w.device, dtype=w.dtype) for size in w.shape[1:])
        total = w.sum(-1)
        return (first + query - (w @ key) / total).where(total > 0, 0.0)

    def top(self, k: int) -> TopWeights:
        """The largest weights of each row and their keys, (heads, queries, k)."""
        if self.weights is None:
            found = self.made.top(k)
            return TopWeights(found.weights[self.batch], found.keys[self.batch])
        return TopWeights(*self.weights.topk(k))

    def picture(self, cells: int) -> Float[Tensor, "heads rows columns"]:
        """The map in at most so many rows and columns; see `AttentionMap.pooled`."""
        most = min(cells, SUMMARY_CELLS) if isinstance(self.made, AttentionSummary) else cells
        queries, keys = self.made.shape[2:]
        size = min(most, queries), min(most, keys)
        if size not in self._pictures:
            self._pictures[size] = self._coarser(*size)
        return self._pictures[size]

    def _coarser(self, rows: int, columns: int) -> Tensor:
        """From a picture whose cells those of this one are made of; else from the weights; else from the map."""
        queries, keys = self.made.shape[2:]
        for (high, wide), picture in self._pictures.items():
            if high % rows == 0 and wide % columns == 0:
                counts = _counts(queries, high, picture)
                cells = (picture * counts[:, None]).reshape(-1, rows, high // rows, columns, wide // columns)
                coarser: Tensor = cells.sum((2, 4)) / _counts(queries, rows, picture)[:, None]
                return coarser
        if self.weights is None:
            return self.made.pooled(rows, columns)[self.batch]
        w = self.weights
        above, left = _cells(queries, rows, w), _cells(keys, columns, w)
        return (above / above.sum(1, keepdim=True)) @ w @ left.T


def _counts(size: int, cells: int, like: Tensor) -> Tensor:
    """How many of so many queries stand in each cell."""
    return torch.tensor([n * size // cells for n in range(cells + 1)], device=like.device).diff().to(like.dtype)


def _cells(size: int, cells: int, like: Tensor) -> Tensor:
    """(cells, size): 1 for what stands in a cell, else 0."""
    cell = torch.arange(cells, device=like.device).repeat_interleave(_counts(size, cells, like).long())
    return torch.nn.functional.one_hot(cell, cells).T.to(like.dtype)
