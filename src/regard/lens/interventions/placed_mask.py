"""A mask of all positions of a sequence, for a call with a cache: some keys are gone, others not written yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.mask import Mask
from regard.attention.mask.geometry import Predicate, Tile


@dataclass(frozen=True, eq=False, repr=False)
class PlacedMask(Mask):
    """A mask over the positions before `end_key`, for keys that begin at the position `first_key`."""

    mask: Mask
    first_key: int
    end_key: int

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        """See `Mask.evaluate`."""
        start, stop = (min(column + self.first_key, self.end_key) for column in tile.columns)
        written = self.mask.evaluate(Tile(tile.queries, self.end_key, tile.rows, (start, stop), tile.device))
        width = tile.columns[1] - tile.columns[0]
        written = written.expand(*written.shape[:-1], stop - start)
        room = written.new_zeros(*written.shape[:-1], width - (stop - start))
        return torch.cat([written, room], -1)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        """See `Mask.predicate`."""
        allowed = self.mask.predicate(queries, self.end_key, device)

        def predicate(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            key = j + self.first_key
            return allowed(b, h, i, key.clamp(max=self.end_key - 1)) & (key < self.end_key)

        return predicate

    def validate(self, queries: int, keys: int) -> None:
        """See `Mask.validate`."""
        self.mask.validate(queries, self.end_key)

    def __repr__(self) -> str:
        return f"{self.mask!r} of the keys {self.first_key} to {self.end_key}"
