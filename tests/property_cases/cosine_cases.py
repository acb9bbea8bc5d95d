"""Cosines of queries and keys, divided by their lengths after the product."""

from __future__ import annotations

from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, of_x, split


def _cosines(x: Tensor, *, of_keys: bool) -> Tensor:
    q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / 3)) for seed in range(3))
    asked, found = q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True)
    lengths = asked * (found.mT if of_keys else found)
    scores = q @ k.mT  # here
    return joined((scores / lengths * 5).softmax(-1) @ v)


def of_its_own_key(x: Tensor) -> Tensor:
    return _cosines(x, of_keys=False)


def of_the_key_that_is_seen(x: Tensor) -> Tensor:
    return _cosines(x, of_keys=True)


def alike(x: Tensor) -> Tensor:
    """Queries are keys: the lengths of both are those of one sequence."""
    q, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / 3)) for seed in range(2))
    lengths = q.norm(dim=-1, keepdim=True) * q.norm(dim=-1, keepdim=True).mT
    return joined((q @ q.mT / lengths * 5).softmax(-1) @ v)


CASES = [
    Case("cosine-of-both", of_its_own_key, of_the_key_that_is_seen, of_x),
    Case("cosine-of-both", of_its_own_key, alike, of_x),
]
