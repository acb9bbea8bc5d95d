"""Linear attention by random features of the softmax."""

from __future__ import annotations

from torch import Tensor

from property_cases import HEADS, WIDTH, Case, drawn, joined, of_x, split

COUNT = 16
W = drawn(COUNT, WIDTH // HEADS, seed=11)
MATRICES = [drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (1, 2, 3)]


def positive(x: Tensor, lengths: Tensor) -> Tensor:
    return (x @ W.mT - lengths).exp() / COUNT**0.5  # here


def read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined((q @ (k.mT @ v)) / (q @ k.sum(-2)[..., None]))


def of_tokens(x: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (split(x @ each) for each in MATRICES)
    return q * q.shape[-1] ** -0.25, k * k.shape[-1] ** -0.25, v


def by_random_features(x: Tensor) -> Tensor:
    """FAVOR+: positive random features."""
    q, k, v = of_tokens(x)
    q, k = (positive(each, each.square().sum(-1, keepdim=True) / 2) for each in (q, k))
    return read(q, k, v)


def by_random_features_less_a_maximum(x: Tensor) -> Tensor:
    """FAVOR+: positive random features, less the largest of all keys."""
    q, k, v = of_tokens(x)
    largest = (k @ W.mT).amax((-2, -1), keepdim=True)
    q, k = (positive(each, each.square().sum(-1, keepdim=True) / 2 + largest) for each in (q, k))
    return read(q, k, v)


def by_random_features_of_lengths(x: Tensor) -> Tensor:
    """FAVOR+: positive random features."""
    q, k, v = of_tokens(x)
    q, k = (positive(each, each.norm(dim=-1, keepdim=True) / 2) for each in (q, k))
    return read(q, k, v)


def by_random_features_of_squares(x: Tensor) -> Tensor:
    """FAVOR+: positive random features."""
    q, k, v = of_tokens(x)
    q, k = (positive(each, each.square().sum(-1, keepdim=True)) for each in (q, k))
    return read(q, k, v)


CASES = [
    Case("random-features-estimate", by_random_features_of_lengths, by_random_features, of_x),
    Case("random-features-estimate", by_random_features_of_squares, by_random_features_less_a_maximum, of_x),
]
