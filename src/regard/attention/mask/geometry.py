"""The geometry of a mask: tiles of the queries x keys square, what is known of them, and what a mask must answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard._shapes import Bool, Int

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch row, head, query, key) -> may attend; all four are index tensors that broadcast."""


@dataclass(frozen=True)
class Tile:
    """Some rows and columns of the queries x keys square; each pair is (start, stop), as in a slice."""

    queries: int
    keys: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    device: torch.device | str | None = None

    @classmethod
    def full(cls, queries: int, keys: int, device: torch.device | str | None = None) -> Tile:
        """Every query and every key."""
        return cls(queries, keys, (0, queries), (0, keys), device)

    def query_offset(self, offset: int | None) -> int:
        """The position of query 0 among the keys. Without an offset, the queries are the last positions."""
        return self.keys - self.queries if offset is None else offset

    def query_positions(self, offset: int | None = None) -> Int[Tensor, "rows 1"]:
        """The positions of the queries among the keys."""
        first = self.query_offset(offset)
        return torch.arange(self.rows[0] + first, self.rows[1] + first, device=self.device)[:, None]

    def key_positions(self) -> Int[Tensor, "1 columns"]:
        """The positions of the keys."""
        return torch.arange(*self.columns, device=self.device)[None, :]


@dataclass(frozen=True)
class TileBounds:
    """What is known of each tile of a grid without evaluating it: ``(..., tiles of rows, tiles of columns)``."""

    any_allowed: Tensor
    """False: no pair of the tile may attend. True: some pair may attend, or this is not known."""
    all_allowed: Tensor
    """True: every pair of the tile may attend. False: some pair may not, or this is not known."""

    @classmethod
    def full(cls) -> TileBounds:
        """Every query may attend to every key."""
        return cls(torch.ones(1, 1, dtype=torch.bool, device="cpu"), torch.ones(1, 1, dtype=torch.bool, device="cpu"))

    @classmethod
    def unknown(cls) -> TileBounds:
        """Nothing is known: every tile must be evaluated."""
        return cls(torch.ones(1, 1, dtype=torch.bool, device="cpu"), torch.zeros(1, 1, dtype=torch.bool, device="cpu"))


@dataclass(frozen=True)
class TileGrid:
    """The queries x keys square cut into tiles, each with its first and last query and key."""

    queries: int
    keys: int
    tile_rows: int
    tile_columns: int

    @cached_property
    def first_queries(self) -> Int[Tensor, "tiles 1"]:
        """The first query of each tile."""
        return torch.arange(0, self.queries, self.tile_rows, device="cpu")[:, None]

    @cached_property
    def last_queries(self) -> Int[Tensor, "tiles 1"]:
        """The last query of each tile."""
        return (self.first_queries + self.tile_rows - 1).clamp(max=self.queries - 1)

    @cached_property
    def first_keys(self) -> Int[Tensor, " tiles"]:
        """The first key of each tile."""
        return torch.arange(0, self.keys, self.tile_columns, device="cpu")

    @cached_property
    def last_keys(self) -> Int[Tensor, " tiles"]:
        """The last key of each tile."""
        return (self.first_keys + self.tile_columns - 1).clamp(max=self.keys - 1)


class MaskGeometry(ABC):
    """What every kind of mask answers, and what follows from these answers."""

    batch_size: int | None = None
    """The number of batch rows, if the mask has one entry for each; None if it is the same for all."""

    shape: tuple[int | None, int | None] = (None, None)
    """The numbers of queries and keys that the mask is made for; None where any number fits."""

    min_keys: int = 0
    """The smallest number of keys that the mask fits."""

    @abstractmethod
    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        """Which pairs of a tile may attend; an axis along which the mask does not change has size 1."""

    @abstractmethod
    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        """The mask as a function of indices, as `torch.nn.attention.flex_attention` takes it."""

    def bounds(self, grid: TileGrid) -> TileBounds:
        """What is known of each tile without evaluating every pair."""
        return TileBounds.unknown()

    def validate(self, queries: int, keys: int) -> None:  # noqa: B027  # most kinds fit any number
        """Refuse numbers of queries or keys that the mask is not made for.

        Raises:
            ValueError: the mask is made for another number of queries or keys.
        """

    def dense(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads queries keys"]:
        """The mask as a boolean tensor, True = may attend.

        Args:
            queries: number of queries.
            keys: number of keys.
            device: the device of the result; by default that of the mask's own tensors.

        Returns:
            Boolean tensor ``(..., queries, keys)``, whose leading axes broadcast against ``(batch, heads)``. It may be
            an expanded view: clone it before you write to it.

        Raises:
            ValueError: the mask is made for another number of queries or keys.
        """
        small = self.broadcastable(queries, keys, device=device)
        return small.expand(*small.shape[:-2], queries, keys)

    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        """Like `dense`, in less memory: an axis along which the mask does not change has size 1."""
        if queries < 0 or keys < 0:
            raise ValueError(f"{self!r}: there cannot be {queries} queries and {keys} keys")
        self.validate(queries, keys)
        return self.evaluate(Tile.full(queries, keys, device))

    def batch_heads(self, queries: int, keys: int) -> tuple[int | None, int | None]:
        """The numbers of batch rows and heads that have a mask of their own; None where one mask serves all.

        Raises:
            ValueError: parts of the mask contradict each other; it has further axes before batch and heads.
        """
        self.validate(queries, keys)
        corner = self.evaluate(Tile(queries, keys, (0, min(1, queries)), (0, min(1, keys))))
        *more, batch, heads = (1, 1, *corner.shape[:-2])
        if any(size != 1 for size in more):
            raise ValueError(f"{self!r} has the axes {tuple(corner.shape[:-2])} before its queries, not (batch, heads)")
        return self.batch_size if batch == 1 else batch, None if heads == 1 else heads


def mask_value(t: Tensor, index: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """The elements of a mask tensor at (batch, head, query, key); an axis of size 1 serves every index."""
    own_axes = index[-t.ndim :]
    return t[tuple(i if size != 1 else i * 0 for i, size in zip(own_axes, t.shape, strict=True))]
