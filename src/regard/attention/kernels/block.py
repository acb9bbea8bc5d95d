"""One block of a schedule: some rows of the queries against some of the keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Block"]


@dataclass(frozen=True)
class Block:
    """Some rows against some keys; what it takes of a tensor, and where it adds a gradient.

    Every tensor here has four axes. One that is the same for the whole batch has one batch row.
    """

    rows: tuple[int, int]
    keys: tuple[int, int] | Tensor
    """A run of keys as (start, stop), or the index of each key: a run is a view, an index is a copy."""
    may: Tensor | None = None
    """The mask of these rows and keys; None where everybody may attend to everything."""
    causal: bool = False
    """Row n may attend to the first n + 1 of the keys: the kernel's own flag."""
    batch: int | None = None
    """The batch row it is about; None for all of them."""

    @property
    def columns(self) -> int:
        """How many keys there are."""
        return len(self.keys) if isinstance(self.keys, Tensor) else self.keys[1] - self.keys[0]

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
        """The keys of a tensor (batch, heads, keys, width)."""
        return self._along_keys(self._of_batch(t), 2)

    def of_pairs(self, t: Tensor) -> Tensor:
        """The rows and keys of a tensor (batch, heads, queries, keys); an axis of size 1 stays."""
        t = self._of_batch(t)
        t = t if t.shape[2] == 1 else t[:, :, slice(*self.rows)]
        return t if t.shape[3] == 1 else self._along_keys(t, 3)

    def add_to_queries(self, total: Tensor, part: Tensor) -> None:
        """Add to what `of_queries` takes."""
        self.of_queries(total).add_(part)

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add to what `of_keys` takes."""
        self._add_along_keys(self._of_batch(total), part, 2)

    def add_to_pairs(self, total: Tensor, part: Tensor) -> None:
        """Add to what `of_pairs` takes."""
        total = self._of_batch(total)
        total = total if total.shape[2] == 1 else total[:, :, slice(*self.rows)]
        if total.shape[3] == 1:
            total.add_(part)
        else:
            self._add_along_keys(total, part, 3)

    def _along_keys(self, t: Tensor, axis: int) -> Tensor:
        if isinstance(self.keys, Tensor):
            return t.index_select(axis, self.keys)
        return t.narrow(axis, self.keys[0], self.columns)

    def _add_along_keys(self, total: Tensor, part: Tensor, axis: int) -> None:
        if isinstance(self.keys, Tensor):
            total.index_add_(axis, self.keys, part.to(total.dtype))
        else:
            total.narrow(axis, self.keys[0], self.columns).add_(part)

    def _of_batch(self, t: Tensor) -> Tensor:
        return t if self.batch is None or len(t) == 1 else t[self.batch : self.batch + 1]
