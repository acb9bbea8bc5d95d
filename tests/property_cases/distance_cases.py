"""Learned vectors of clipped distances, by which queries are multiplied."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from property_cases import HEADS, WIDTH, Case, drawn, joined, of_x, split

REACH = 2
TABLE = drawn(2 * REACH + 1, WIDTH // HEADS, seed=7)
MOST = 8
"""Tokens for whose distances there are vectors."""
VECTORS = drawn(2 * MOST - 1, WIDTH // HEADS, seed=8)
TOKENS = 5


def by_distance(x: Tensor, rows: Tensor, table: Tensor = TABLE) -> Tensor:
    """Attention with a vector of each distance that is added to the keys."""
    q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / 3)) for seed in (1, 2, 3))
    added = torch.einsum("bhqd,qkd->bhqk", q, table[rows])  # here
    scores = (q @ k.mT + added) / q.shape[-1] ** 0.5
    return joined(scores.softmax(-1) @ v)


def distances(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    return places - places[:, None]


def clipped_and_moved(x: Tensor) -> Tensor:
    return by_distance(x, distances(x).clamp(-REACH, REACH) + REACH)


def moved_and_clipped(x: Tensor) -> Tensor:
    return by_distance(x, (distances(x) + REACH).clamp(-REACH, REACH))


def how_far_apart(x: Tensor) -> Tensor:
    return by_distance(x, distances(x).abs().clamp(max=REACH))


def counted_from_the_first(x: Tensor) -> Tensor:
    """Distance 0 has another vector in each text that is of another length."""
    return by_distance(x, distances(x) + x.shape[1] - 1, VECTORS)


def counted_from_the_middle(x: Tensor) -> Tensor:
    return by_distance(x, distances(x) + MOST - 1, VECTORS)


def of_one_length(x: Tensor) -> Tensor:
    """There are vectors for the distances of this many tokens alone."""
    return by_distance(x, distances(x) + x.shape[1] - 1, VECTORS[: 2 * TOKENS - 1])


def of_functions_of_the_length(x: Tensor) -> Tensor:
    """Functions of the distance that are as wide as the sequence is long, as in Enformer, and a matrix."""
    apart = torch.arange(2 * x.shape[1] - 1)[:, None] - (x.shape[1] - 1)
    functions = torch.exp(-apart.abs() * torch.arange(1, 4, dtype=x.dtype) / x.shape[1]) * (apart + 0.5).sign()
    return by_distance(x, distances(x) + x.shape[1] - 1, functions @ drawn(3, WIDTH // HEADS, seed=9))


def of_a_resized_table(x: Tensor) -> Tensor:
    """The table is stretched to the distances of a sequence, as where a model is taken to larger pictures."""
    resized = torch.nn.functional.interpolate(VECTORS.T[None], size=2 * x.shape[1] - 1, mode="linear")
    return by_distance(x, distances(x) + x.shape[1] - 1, resized[0].T)


CASES = [
    Case("positions-relative", counted_from_the_first, of_functions_of_the_length, partial(of_x, tokens=TOKENS)),
    Case("positions-relative", counted_from_the_first, of_a_resized_table, partial(of_x, tokens=TOKENS)),
    Case("positions-relative", counted_from_the_first, counted_from_the_middle, partial(of_x, tokens=TOKENS)),
    Case("positions-relative", counted_from_the_first, of_one_length, partial(of_x, tokens=TOKENS)),
    Case("distances-on-both-sides", moved_and_clipped, clipped_and_moved, partial(of_x, tokens=5)),
    Case("distances-on-both-sides", moved_and_clipped, how_far_apart, partial(of_x, tokens=5)),
]
