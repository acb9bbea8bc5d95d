"""One block of a schedule: some queries and the keys that they are multiplied with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

Places = tuple[int, int] | Tensor
"""(start, stop) of neighbouring rows or keys, which are taken as a view; or the index of each, in rising order, which
makes a copy."""


@dataclass(frozen=True)
class ScoreBlock:
    """Some rows (queries) of the scores and some keys; takes the block's part of a tensor, and adds its gradients.

    Every tensor here has four axes. A tensor that serves the whole batch has one batch row.
    """

    rows: Places
    keys: Places
    allowed: Tensor | None = None
    """The mask of these rows and keys; None where every pair may attend."""
    causal: bool = False
    """Row n may attend to the first n + 1 keys of the block: the kernel's own flag."""
    batch: int | None = None
    """The batch row of the block; None for all batch rows."""
    heads: tuple[int, int] | None = None
    """(n, parts): the heads are the n-th of so many equal parts, counted from 0; None for all heads."""
    num_stacked: int = 1
    """The number of blocks in a stack: blocks of one batch row that are equal but for their place, each `height` rows
    after the one before. They lie on the batch axis of what is taken. Their rows and keys are neighbours."""
    stack_stride: int | None = None
    """How many keys after the one before each block of a stack starts; None: `height`."""

    @property
    def columns(self) -> int:
        """The number of keys; in a stack, of one block."""
        return num_places(self.keys)

    @property
    def height(self) -> int:
        """The number of rows; in a stack, of one block."""
        return num_places(self.rows)

    @property
    def pairs(self) -> int:
        """The number of pairs of a query and a key that are multiplied."""
        rows = self.height
        if not self.causal:
            return self.num_stacked * rows * self.columns
        square = min(rows, self.columns)
        return self.num_stacked * (square * (square + 1) // 2 + (rows - square) * self.columns)

    @property
    def key_stride(self) -> int:
        """How many keys after the one before each block of a stack starts."""
        return self.height if self.stack_stride is None else self.stack_stride

    @property
    def row_places(self) -> Places:
        """The rows; in a stack, of all its blocks."""
        if isinstance(self.rows, Tensor):
            return self.rows
        return self.rows[0], self.rows[0] + self.num_stacked * self.height

    @property
    def key_span(self) -> tuple[int, int]:
        """(start, stop) from the first to the last key; in a stack, of all its blocks."""
        if isinstance(self.keys, Tensor):
            return int(self.keys[0]), int(self.keys[-1]) + 1
        return self.keys[0], self.keys[1] + (self.num_stacked - 1) * self.key_stride

    def take_queries(self, t: Tensor) -> Tensor:
        """The rows of a tensor (batch, heads, queries, ...)."""
        t = self.take_heads(t)
        return _take(t, 2, self.rows) if self.num_stacked == 1 else self._stack_of_rows(t)

    def put_queries(self, t: Tensor, part: Tensor) -> None:
        """Write what stands for the rows into a tensor (batch, heads, queries, ...)."""
        if isinstance(self.rows, Tensor):
            self.take_heads(t)[:, :, self.rows] = part
        else:
            self.take_queries(t).copy_(part)

    def take_keys(self, t: Tensor) -> Tensor:
        """The keys of a tensor (batch, heads, keys, width)."""
        t = self.take_heads(t)
        if self.num_stacked == 1 or isinstance(self.keys, Tensor):
            return _take(t, 2, self.keys)
        # Neighbouring blocks may share keys, which the view then holds more than once.
        return self._unfolded(t[0], 1).permute(1, 0, 3, 2)

    def take_pairs(self, t: Tensor) -> Tensor:
        """The rows and keys of a tensor (batch, heads, queries, keys); an axis of size 1 stays."""
        t = self.take_heads(t)
        by_row, by_key = (size != 1 for size in t.shape[2:])
        if self.num_stacked == 1 or isinstance(self.keys, Tensor):
            t = _take(t, 2, self.rows) if by_row else t
            return _take(t, 3, self.keys) if by_key else t
        t = self._stack_of_rows(t) if by_row else t
        if not by_key:
            return t
        t = self._unfolded(t, 3).movedim(3, 0)  # for the rows of each block, the keys of every block
        return t.diagonal(dim1=0, dim2=1).movedim(-1, 0) if by_row else t[:, 0]

    def add_to_queries(self, total: Tensor, part: Tensor) -> None:
        """Add to the part that `take_queries` takes."""
        if isinstance(self.rows, Tensor):
            self.take_heads(total).index_add_(2, self.rows, part.to(total.dtype))
        else:
            self.take_queries(total).add_(part)

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add to the part that `take_keys` takes."""
        if self.num_stacked > 1 and self.key_stride >= self.columns:
            self.take_keys(total).add_(part)
            return
        total = self.take_heads(total)
        if self.num_stacked == 1:
            _add(total, 2, self.keys, part)
        for block, piece in zip(self.unstack(), part, strict=True) if self.num_stacked > 1 else ():
            _add(total, 2, block.keys, piece[None])

    def add_to_pairs(self, total: Tensor, part: Tensor) -> None:
        """Add to the part that `take_pairs` takes."""
        if self.num_stacked > 1 and not isinstance(self.keys, Tensor):
            self.take_pairs(total).add_(part)
            return
        total = self.take_heads(total)
        by_row, by_key = (size != 1 for size in total.shape[2:])
        rows = _take(total, 2, self.rows) if by_row else total
        if by_key:
            _add(rows, 3, self.keys, part)
        else:
            rows.add_(part)
        if by_row and isinstance(self.rows, Tensor):
            total[:, :, self.rows] = rows  # a copy was taken

    def unstack(self) -> Iterator[ScoreBlock]:
        """The blocks of a stack, one by one."""
        return self.split(1)

    def split(self, max_blocks: int) -> Iterator[ScoreBlock]:
        """The blocks of a stack, in stacks of up to ``max_blocks``."""
        if self.num_stacked <= max_blocks or isinstance(self.keys, Tensor) or isinstance(self.rows, Tensor):
            yield self
            return
        for n in range(0, self.num_stacked, max_blocks):
            down, right = n * self.height, n * self.key_stride
            rows, keys = (self.rows[0] + down, self.rows[1] + down), (self.keys[0] + right, self.keys[1] + right)
            yield replace(self, rows=rows, keys=keys, num_stacked=min(max_blocks, self.num_stacked - n))

    def chunks_of_rows(self, height: int) -> Iterator[tuple[int, ScoreBlock]]:
        """The block cut into blocks of so many rows, each with the number of rows before it."""
        for top in range(0, self.height, height):
            bottom = min(top + height, self.height)
            rows = (
                self.rows[top:bottom] if isinstance(self.rows, Tensor) else (self.rows[0] + top, self.rows[0] + bottom)
            )
            allowed = self.allowed
            if allowed is not None and allowed.shape[-2] != 1:
                allowed = allowed[..., top:bottom, :]
            yield top, replace(self, rows=rows, allowed=allowed)

    def _stack_of_rows(self, t: Tensor) -> Tensor:
        """(1, heads, queries, ...) as (stack, heads, rows, ...), a view."""
        assert not isinstance(self.rows, Tensor)
        rows = t[0].narrow(1, self.rows[0], self.num_stacked * self.height)
        return rows.unflatten(1, (self.num_stacked, self.height)).transpose(0, 1)  # type: ignore[no-any-return, no-untyped-call]

    def _unfolded(self, t: Tensor, axis: int) -> Tensor:
        """The keys of every block of a stack along one axis, with the keys of one block on a new last axis; a view."""
        assert not isinstance(self.keys, Tensor)
        span = t.narrow(axis, self.keys[0], self.columns + (self.num_stacked - 1) * self.key_stride)
        return span.unfold(axis, self.columns, self.key_stride)

    def take_heads(self, t: Tensor) -> Tensor:
        """The batch rows and the heads of a tensor (batch, heads, ...), a view; an axis of size 1 stays."""
        t = t if self.batch is None or len(t) == 1 else t[self.batch : self.batch + 1]
        if self.heads is None or t.shape[1] == 1:
            return t
        part, parts = self.heads
        size = t.shape[1] // parts
        return t.narrow(1, part * size, size)


def num_places(places: Places) -> int:
    """How many rows or keys there are."""
    return len(places) if isinstance(places, Tensor) else places[1] - places[0]


def _take(t: Tensor, axis: int, places: Places) -> Tensor:
    if isinstance(places, Tensor):
        return t.index_select(axis, places)
    return t.narrow(axis, places[0], places[1] - places[0])


def _add(total: Tensor, axis: int, places: Places, part: Tensor) -> None:
    if isinstance(places, Tensor):
        total.index_add_(axis, places, part.to(total.dtype))
    else:
        total.narrow(axis, places[0], places[1] - places[0]).add_(part)
