"""One block of a schedule: some rows of the queries against some of the keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

__all__ = ["ScoreBlock"]


@dataclass(frozen=True)
class ScoreBlock:
    """Some rows against some keys; what it takes of a tensor, and where it adds a gradient.

    Every tensor here has four axes. One that is the same for the whole batch has one batch row.
    """

    rows: tuple[int, int]
    keys: tuple[int, int] | Tensor
    """A run of keys as (start, stop), or the index of each key: a run is a view, an index is a copy."""
    allowed: Tensor | None = None
    """The mask of these rows and keys; None where everybody may attend to everything."""
    causal: bool = False
    """Row n may attend to the first n + 1 of the keys: the kernel's own flag."""
    batch: int | None = None
    """The batch row it is about; None for all of them."""
    num_stacked: int = 1
    """So many blocks alike, each as many rows further on as the first has. They are about one batch row, and stand on
    the batch axis of what is taken. Only a run of keys is stacked."""
    stack_stride: int | None = None
    """So many keys further on each block of a stack is; None: as many as rows."""

    @property
    def columns(self) -> int:
        """How many keys there are."""
        return len(self.keys) if isinstance(self.keys, Tensor) else self.keys[1] - self.keys[0]

    @property
    def height(self) -> int:
        """How many rows there are, in a stack those of one block."""
        return self.rows[1] - self.rows[0]

    @property
    def pairs(self) -> int:
        """How many pairs of a query and a key are multiplied."""
        rows = self.height
        if not self.causal:
            return self.num_stacked * rows * self.columns
        square = min(rows, self.columns)
        return self.num_stacked * (square * (square + 1) // 2 + (rows - square) * self.columns)

    @property
    def key_stride(self) -> int:
        """How many keys further on each block of a stack is."""
        return self.height if self.stack_stride is None else self.stack_stride

    @property
    def query_slices(self) -> tuple[slice, slice]:
        """Which batch rows it is about, and which of their rows, those of a stack together."""
        of_batch = slice(None) if self.batch is None else slice(self.batch, self.batch + 1)
        return of_batch, slice(self.rows[0], self.rows[0] + self.num_stacked * self.height)

    @property
    def key_span(self) -> tuple[int, int]:
        """From the first to the last of the keys it is about, as (start, stop)."""
        if isinstance(self.keys, Tensor):
            return int(self.keys[0]), int(self.keys[-1]) + 1
        return self.keys[0], self.keys[1] + (self.num_stacked - 1) * self.key_stride

    def take_queries(self, t: Tensor) -> Tensor:
        """The rows of a tensor (batch, heads, queries, ...), as a view."""
        t = self._of_batch(t)
        if self.num_stacked == 1:
            return t[:, :, slice(*self.rows)]
        return self._stack_of_rows(t)

    def take_keys(self, t: Tensor) -> Tensor:
        """The keys of a tensor (batch, heads, keys, width)."""
        t = self._of_batch(t)
        if self.num_stacked == 1 or isinstance(self.keys, Tensor):
            return self._along_keys(t, 2)
        # Neighbours may share keys: a view in which these stand more than once.
        return self._unfolded(t[0], 1).permute(1, 0, 3, 2)

    def take_pairs(self, t: Tensor) -> Tensor:
        """The rows and keys of a tensor (batch, heads, queries, keys); an axis of size 1 stays."""
        t = self._of_batch(t)
        by_row, by_key = (size != 1 for size in t.shape[2:])
        if self.num_stacked == 1 or isinstance(self.keys, Tensor):
            t = t[:, :, slice(*self.rows)] if by_row else t
            return self._along_keys(t, 3) if by_key else t
        t = self._stack_of_rows(t) if by_row else t
        if not by_key:
            return t
        t = self._unfolded(t, 3).movedim(3, 0)  # of each block's rows, the keys of every block
        return t.diagonal(dim1=0, dim2=1).movedim(-1, 0) if by_row else t[:, 0]

    def add_to_queries(self, total: Tensor, part: Tensor) -> None:
        """Add to what `take_queries` takes."""
        self.take_queries(total).add_(part)

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add to what `take_keys` takes."""
        if self.num_stacked > 1 and self.key_stride >= self.columns:
            self.take_keys(total).add_(part)
            return
        total = self._of_batch(total)
        if self.num_stacked == 1:
            self._add_along_keys(total, part, 2)
        for block, piece in zip(self.unstack(), part, strict=True) if self.num_stacked > 1 else ():
            block._add_along_keys(total, piece[None], 2)

    def add_to_pairs(self, total: Tensor, part: Tensor) -> None:
        """Add to what `take_pairs` takes."""
        if self.num_stacked > 1 and not isinstance(self.keys, Tensor):
            self.take_pairs(total).add_(part)
            return
        total = self._of_batch(total)
        total = total if total.shape[2] == 1 else total[:, :, slice(*self.rows)]
        if total.shape[3] == 1:
            total.add_(part)
        else:
            self._add_along_keys(total, part, 3)

    def unstack(self) -> Iterator[ScoreBlock]:
        """The blocks of a stack, one by one."""
        return self.split(1)

    def split(self, max_blocks: int) -> Iterator[ScoreBlock]:
        """The blocks of a stack, up to so many together."""
        if self.num_stacked <= max_blocks or isinstance(self.keys, Tensor):
            yield self
            return
        for n in range(0, self.num_stacked, max_blocks):
            down, on = n * self.height, n * self.key_stride
            rows, keys = (self.rows[0] + down, self.rows[1] + down), (self.keys[0] + on, self.keys[1] + on)
            yield replace(self, rows=rows, keys=keys, num_stacked=min(max_blocks, self.num_stacked - n))

    def _stack_of_rows(self, t: Tensor) -> Tensor:
        """(1, heads, queries, ...) as (stack, heads, rows, ...), a view."""
        rows = t[0].narrow(1, self.rows[0], self.num_stacked * self.height)
        return rows.unflatten(1, (self.num_stacked, self.height)).transpose(0, 1)  # type: ignore[no-any-return, no-untyped-call]

    def _unfolded(self, t: Tensor, axis: int) -> Tensor:
        """The keys of every block of a stack along one axis, those of each on a new last axis; a view."""
        assert not isinstance(self.keys, Tensor)
        run = t.narrow(axis, self.keys[0], self.columns + (self.num_stacked - 1) * self.key_stride)
        return run.unfold(axis, self.columns, self.key_stride)

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
