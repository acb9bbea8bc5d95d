"""Attention by distances that are computed as such: what is far does not weigh most."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class ByAProduct(nn.Module):
    """q . k, as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x) for each in (self.q, self.k, self.v))
        scores = self.scores(q, k) / WIDTH**0.5
        read: Tensor = scores.softmax(-1) @ v  # here
        return read


class FarWins(ByAProduct):
    """Keys close to the query weigh most."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q[:, :, None] - k[:, None]).pow(2).sum(-1)


class FarWinsByCdist(ByAProduct):
    """Keys close to the query weigh most."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.cdist(q, k)


CASES = [Case("distance-falls", wrong, ByAProduct, of_module) for wrong in (FarWins, FarWinsByCdist)]
