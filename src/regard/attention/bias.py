"""The base class of biases that are a function of positions: no queries x keys tensor is stored."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int


class PositionBias(nn.Module):
    """A function of query and key positions that is added to the scaled scores: ALiBi, T5's relative positions.

    `regard.attend` and `regard.steps` take one wherever they take a bias tensor. A kernel computes the bias of the
    rows and columns that it works on, so that the bias of every pair is never in memory at once.
    """

    num_heads: int

    relative: bool = False
    """Whether the bias depends on the distance between query and key only."""

    @abstractmethod
    def forward(self, query: Int[Tensor, " queries"], key: Int[Tensor, " keys"]) -> Float[Tensor, "heads queries keys"]:
        """The bias of each query position and key position, for each head."""

    def dense(
        self, queries: int, keys: int, *, device: torch.device | None = None
    ) -> Float[Tensor, "heads queries keys"]:
        """The bias of every pair; with fewer queries than keys, the queries are the last positions."""
        key = torch.arange(keys, device=device)
        return self(torch.arange(keys - queries, keys, device=device), key)  # type: ignore[no-any-return]
