"""Learned vectors of distances that are added to keys and to values (Shaw et al. 2018)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split

D_HEAD = WIDTH // HEADS
TOKENS = 4


class Shaw(nn.Module):
    """Weights and scores by a reshape: (T, 2T - 1) of distances and (T, T) of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.of_keys = nn.Parameter(torch.randn(2 * TOKENS - 1, D_HEAD))
        self.of_values = nn.Parameter(torch.randn(2 * TOKENS - 1, D_HEAD))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = self.scores(q, k).softmax(-1)
        return joined(weights @ v + self.by_distance(weights) @ self.of_values)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        q = q / math.sqrt(D_HEAD)
        return q @ k.mT + self.by_key(q @ self.of_keys.mT)

    def by_key(self, logits: Tensor) -> Tensor:
        size = logits.shape[-2]
        flat = F.pad(F.pad(logits, (0, 1)).flatten(-2), (0, size - 1))
        return flat.unflatten(-1, (size + 1, -1))[..., :size, size - 1 :]

    def by_distance(self, weights: Tensor) -> Tensor:
        size = weights.shape[-1]
        flat = F.pad(F.pad(weights, (0, size - 1)).flatten(-2), (size, 0))
        return flat.unflatten(-1, (size, 2 * size))[..., 1:]


class ShiftedValues(Shaw):
    """The same, with the padding of the weights in place of the last column."""

    def by_distance(self, weights: Tensor) -> Tensor:
        size = weights.shape[-1]
        flat = F.pad(F.pad(weights, (0, size - 1)).flatten(-2), (size, 0))
        return flat.unflatten(-1, (size, 2 * size))[..., :-1]


class Scattered(Shaw):
    """The same, by an index of each distance."""

    first = TOKENS - 1

    def by_key(self, logits: Tensor) -> Tensor:
        return logits.gather(-1, self.apart(TOKENS - 1).expand(*logits.shape[:2], -1, -1))

    def by_distance(self, weights: Tensor) -> Tensor:
        places = self.apart(self.first).expand(*weights.shape[:2], -1, -1)
        wide = weights.new_zeros(*weights.shape[:3], 2 * TOKENS)
        return wide.scatter(-1, places, weights)[..., : 2 * TOKENS - 1]

    def apart(self, first: int) -> Tensor:
        return torch.arange(TOKENS) - torch.arange(TOKENS)[:, None] + first


class ScatteredBehind(Scattered):
    """The same, one further: the last distance falls out."""

    first = TOKENS


class UnscaledVectors(Shaw):
    """The same, with queries that are scaled for keys alone."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q / math.sqrt(D_HEAD) @ k.mT + self.by_key(q @ self.of_keys.mT)


class ScaledBefore(Scattered):
    """The same, with the scale behind the product with keys."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(D_HEAD) + self.by_key(q @ self.of_keys.mT)


class ScaledBehind(Scattered):
    """The same, with the scale behind the sum."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT + self.by_key(q @ self.of_keys.mT)) / math.sqrt(D_HEAD)


class ScaledVectors(Shaw):
    """The same, with the scale at the vectors."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        scale = D_HEAD**-0.5
        return (q * scale) @ k.mT + self.by_key(q @ (self.of_keys * scale).mT)


class ScaledInTwo(Shaw):
    """The same, with half of the scale at the queries and half at the keys, of both kinds."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        half = D_HEAD**-0.25
        return (q * half) @ (k * half).mT + self.by_key((q * half) @ self.of_keys.mT) * half


class VectorsOfKeysAlone(UnscaledVectors):
    """The same without vectors of values: picture models leave queries unscaled there, and it is their design."""

    def __init__(self) -> None:
        super().__init__()
        del self.of_values

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(self.scores(q, k).softmax(-1) @ v)


CASES = [
    Case("vector-of-each-distance", ShiftedValues, Shaw, of_module, has_line=False),
    Case("vector-of-each-distance", ScatteredBehind, Scattered, of_module, has_line=False),
    Case("vectors-scaled-as-keys", UnscaledVectors, ScaledBehind, of_module, has_line=False),
    Case("vectors-scaled-as-keys", UnscaledVectors, ScaledVectors, of_module, has_line=False),
    Case("vectors-scaled-as-keys", ScaledBefore, ScaledInTwo, of_module, has_line=False),
    Case("vectors-scaled-as-keys", UnscaledVectors, VectorsOfKeysAlone, of_module, has_line=False),
]
