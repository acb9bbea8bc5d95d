"""Attention without products of queries and keys: means of values by exponentials of keys and of biases of places."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module

PLACES = 4


class AttentionFree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.pos_bias = nn.Parameter(torch.zeros(PLACES, PLACES))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.exp(self.k(x)[:, None] + self.pos_bias[..., None])
        above, below = (weights * self.v(x)[:, None]).sum(2), self.below(x, weights)
        return torch.sigmoid(self.q(x)) * (above / below)  # here

    def below(self, x: Tensor, weights: Tensor) -> Tensor:
        return weights.sum(2)


class WithoutTheBiasBelow(AttentionFree):
    def below(self, x: Tensor, weights: Tensor) -> Tensor:
        return torch.exp(self.k(x)).sum(1, keepdim=True)


class BesideAConstant(AttentionFree):
    """A constant keeps the division from 0."""

    def below(self, x: Tensor, weights: Tensor) -> Tensor:
        return weights.sum(2) + 1e-6


class ByProducts(nn.Module):
    """Attention free, causal: the sums are products with exponentials of learned numbers of two places."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.places = nn.Parameter(torch.zeros(2 * PLACES, 2 * PLACES))

    def forward(self, x: Tensor) -> Tensor:
        k, count = self.k(x), x.shape[1]
        keys = (k - self.largest(k)).exp()
        places = self.of_places(self.places[:count, :count])
        above = self.summed(places, keys * self.v(x))
        return torch.sigmoid(self.q(x)) * above / self.summed(places, keys)

    def summed(self, places: Tensor, each: Tensor) -> Tensor:
        return places @ each

    def of_places(self, places: Tensor) -> Tensor:
        return places.exp().tril()

    def largest(self, k: Tensor) -> Tensor:
        return k.amax(1, keepdim=True)


class ByEinsum(ByProducts):
    """Attention free, causal, and its sums over the keys are written by their letters."""

    def summed(self, places: Tensor, each: Tensor) -> Tensor:
        return torch.einsum("ts,bsd->btd", places, each)


class LessTheLargestOfEach(ByProducts):
    def largest(self, k: Tensor) -> Tensor:
        return k.amax(-1, keepdim=True)  # here


class LessTheLargestOfEachByEinsum(ByEinsum):
    def largest(self, k: Tensor) -> Tensor:
        return k.amax(-1, keepdim=True)  # here


class AttentionFreeByMatrices(AttentionFree):
    """Matrix products multiply by the exponentials of the biases, and sum over the keys."""

    def forward(self, x: Tensor) -> Tensor:
        weights, biases = torch.exp(self.k(x)), torch.exp(self.pos_bias)
        above, below = biases @ (weights * self.v(x)), self.sums(biases, weights)
        return torch.sigmoid(self.q(x)) * (above / below)  # here

    def sums(self, biases: Tensor, weights: Tensor) -> Tensor:
        return biases @ weights


class OtherBiasesBelow(AttentionFreeByMatrices):
    def sums(self, biases: Tensor, weights: Tensor) -> Tensor:
        return torch.exp(2 * self.pos_bias) @ weights


class MadeAnew(AttentionFreeByMatrices):
    """Biases of places further away are 0."""

    def forward(self, x: Tensor) -> Tensor:
        self.pos_bias = nn.Parameter(self.pos_bias.tril(1).triu(-1))  # here
        return super().forward(x)


CASES = [
    Case("softmax-maximum", LessTheLargestOfEach, ByProducts, of_module),
    Case("softmax-maximum", LessTheLargestOfEachByEinsum, ByEinsum, of_module),
    Case("weights-sum-to-one", OtherBiasesBelow, AttentionFreeByMatrices, of_module),
    Case("parameters-kept", MadeAnew, AttentionFreeByMatrices, of_module),
    Case("weights-sum-to-one", WithoutTheBiasBelow, BesideAConstant, of_module),
    Case("weights-sum-to-one", WithoutTheBiasBelow, AttentionFree, of_module),
]
