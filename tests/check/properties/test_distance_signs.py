"""Attention by distances that are computed as such: what is near weighs most."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, of_module
from regard.check.properties.analyze import analyze


class ByDistance(nn.Module):
    """Keys close to the query weigh most."""

    sign = -1.0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def distances(self, q: Tensor, k: Tensor) -> Tensor:
        return (q[:, :, None] - k[:, None]).pow(2).sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.sign * self.distances(self.q(x), self.k(x)) / WIDTH**0.5
        read: Tensor = scores.softmax(-1) @ self.v(x)
        return read


class ByCdist(ByDistance):
    def distances(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.cdist(q, k)


class FarWins(ByDistance):
    sign = 1.0


class FarWinsByCdist(ByCdist):
    sign = 1.0


class Unlike(FarWins):
    """Each token reads what is most dissimilar."""


@pytest.mark.parametrize("right", [ByDistance, ByCdist, Unlike])
def test_scores_that_fall_with_the_distance_are_not_wrong(right: type[nn.Module]) -> None:
    assert analyze(of_module(right)).violations == []


@pytest.mark.parametrize("wrong", [FarWins, FarWinsByCdist])
def test_scores_that_grow_with_the_distance_are_wrong(wrong: type[nn.Module]) -> None:
    assert [each.property for each in analyze(of_module(wrong)).violations] == ["distance-falls"]
