"""What is added to the scaled scores as a function of positions, without a queries x keys tensor kept anywhere."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int

__all__ = ["PositionBias"]


class PositionBias(nn.Module):
    """A bias that is known for any query position and key position: ALiBi, T5's relative positions.

    `regard.attend` and `regard.steps` take one wherever they take a bias tensor. A kernel that works on some rows and
    columns at a time asks for those alone, so that the bias of every pair never stands in memory at once.
    """

    num_heads: int

    relative: bool = False
    """Whether it is the distance alone that counts, so that two places which are as far apart have one bias."""

    @abstractmethod
    def forward(self, query: Int[Tensor, " queries"], key: Int[Tensor, " keys"]) -> Float[Tensor, "heads queries keys"]:
        """The bias of these query positions towards these key positions, head by head."""

    def dense(
        self, queries: int, keys: int, *, device: torch.device | None = None
    ) -> Float[Tensor, "heads queries keys"]:
        """The bias of every pair; with fewer queries than keys the queries are the last positions."""
        key = torch.arange(keys, device=device)
        return self(torch.arange(keys - queries, keys, device=device), key)  # type: ignore[no-any-return]
