"""Tokens that are Gaussians: scores by the distance of two, variances read with squared weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Gaussians(nn.Module):
    """Means and variances, a matrix each; what is far in Wasserstein distance has little weight."""

    def __init__(self, d_model: int = 16, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.mean, self.variance = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, 3 * d_model)
        self.out, self.out_variance = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split(self, x: Tensor) -> Tensor:
        """With an axis of heads."""
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def positive(self, x: Tensor) -> Tensor:
        """Variances."""
        return F.elu(x) + 1

    def apart(self, one: Tensor, other: Tensor) -> Tensor:
        """The squared distance of each two rows."""
        return one.square().sum(-1)[..., None] + other.square().sum(-1)[..., None, :] - 2 * one @ other.mT

    def read(self, weights: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each weighted sum."""
        return weights @ means, weights.square() @ variances

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(self.split, self.mean(x).chunk(3, -1))
        of_q, of_k, of_v = map(self.split, self.positive(self.variance(x)).chunk(3, -1))
        distance = self.apart(q, k) + self.apart(of_q.sqrt(), of_k.sqrt())
        weights = (-distance / q.shape[-1] ** 0.5).softmax(-1)
        mean, variance = (each.transpose(1, 2).flatten(2) for each in self.read(weights, v, of_v))
        return self.out(mean), self.out_variance(variance)


class BySoftplus(Gaussians):
    """Variances and their weighted sums in other words."""

    def positive(self, x: Tensor) -> Tensor:
        """Variances."""
        return F.softplus(x)

    def read(self, weights: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each weighted sum."""
        mean = torch.einsum("bhqk,bhkd->bhqd", weights, means)
        squares = weights * weights
        return mean, squares @ variances


class MeansSquared(Gaussians):
    """Means, of either sign, are weighted by the squares as well."""

    def read(self, weights: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each weighted sum."""
        mean = weights.square() @ means
        return mean, weights @ variances


class VariancesAlone(Gaussians):
    """Nothing is read by the weights as they are."""

    def read(self, weights: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sums."""
        read = weights.square() @ variances
        return read, read


class SignedVariances(Gaussians):
    """What is weighted by the squares is no variance."""

    def read(self, weights: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sums."""
        mean = weights @ means
        return mean, weights.square() @ (variances - 1)


@pytest.mark.parametrize("kind", [Gaussians, BySoftplus])
def test_variances_are_weighted_by_squares(kind: Any) -> None:
    assert check(kind).verdict == "different by design"


@pytest.mark.parametrize("kind", [MeansSquared, VariancesAlone, SignedVariances])
def test_other_values_are_not(kind: Any) -> None:
    assert "weights-kept" in [each.id for each in check(kind).causes]
