"""One block of a schedule: some rows of the queries against some runs of the keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Block", "side_by_side"]


@dataclass(frozen=True)
class Block:
    """Some rows against some runs of keys; what it takes of a tensor, and where it adds a gradient.

    Every tensor here has four axes. One that is the same for the whole batch has one batch row.
    """

    rows: tuple[int, int]
    runs: tuple[tuple[int, int], ...]
    may: Tensor | None = None
    """The mask of these rows and runs; None where everybody may attend to everything."""
    causal: bool = False
    """Row n may attend to the first n + 1 of the keys: the kernel's own flag."""
    batch: int | None = None
    """The batch row it is about; None for all of them."""

    @property
    def columns(self) -> int:
        """How many keys there are in the runs."""
        return sum(stop - start for start, stop in self.runs)

    @property
    def pairs(self) -> int:
        """How many pairs of a query and a key are multiplied."""
        rows = self.rows[1] - self.rows[0]
        if not self.causal:
            return rows * self.columns
        square = min(rows, self.columns)
        return square * (square + 1) // 2 + (rows - square) * self.columns

    def of_queries(self, t: Tensor) -> Tensor:
        """The rows of a tensor (batch, heads, queries, ...), as a view."""
        return self._of_batch(t)[:, :, slice(*self.rows)]

    def of_keys(self, t: Tensor) -> Tensor:
        """The runs of a tensor (batch, heads, keys, width), side by side."""
        t = self._of_batch(t)
        return side_by_side([t[:, :, slice(*run)] for run in self.runs], -2)

    def of_pairs(self, t: Tensor) -> Tensor:
        """The rows and runs of a tensor (batch, heads, queries, keys); an axis of size 1 stays."""
        t = self._of_batch(t)
        if t.shape[-2] != 1:
            t = t[..., slice(*self.rows), :]
        return t if t.shape[-1] == 1 else side_by_side([t[..., slice(*run)] for run in self.runs], -1)

    def add_to_queries(self, total: Tensor, part: Tensor) -> None:
        """Add to what `of_queries` takes."""
        self.of_queries(total).add_(part)

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add to what `of_keys` takes."""
        sizes = [stop - start for start, stop in self.runs]
        for run, piece in zip(self.runs, torch.split(part, sizes, dim=-2), strict=True):
            self._of_batch(total)[:, :, slice(*run)].add_(piece)

    def add_to_pairs(self, total: Tensor, part: Tensor) -> None:
        """Add to what `of_pairs` takes."""
        total = self._of_batch(total)
        if total.shape[-2] != 1:
            total = total[..., slice(*self.rows), :]
        if total.shape[-1] == 1:
            total.add_(part)
            return
        sizes = [stop - start for start, stop in self.runs]
        for run, piece in zip(self.runs, torch.split(part, sizes, dim=-1), strict=True):
            total[..., slice(*run)].add_(piece)

    def _of_batch(self, t: Tensor) -> Tensor:
        return t if self.batch is None or len(t) == 1 else t[self.batch : self.batch + 1]


def side_by_side(parts: list[Tensor], dim: int) -> Tensor:
    """The parts as one tensor; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
