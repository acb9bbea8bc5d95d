"""The softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import Case

EARLIER = torch.ones(3, 3, dtype=torch.bool).tril()


def masks_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / 2).masked_fill(~EARLIER.tril(-1), -torch.inf)
    return scores.softmax(-1) @ v  # here


def sees_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / 2).masked_fill(~EARLIER, -torch.inf)
    return scores.softmax(-1) @ v


def scores_over_their_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    weights = scores / scores.sum(-1, keepdim=True)
    return weights @ v  # here


def squares(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    weights = scores.square()
    return weights @ v  # here


def squares_over_their_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    squares = (q @ k.mT / 2).square()
    return squares / squares.sum(-1, keepdim=True) @ v


def over_the_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.softmax(-2) @ v  # here


def over_the_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.softmax(1) @ v  # here


def over_the_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.softmax(-1) @ v


def scaled_after_the_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1) / 2
    return weights @ v  # here


def masked_after_the_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1) * EARLIER
    return weights @ v  # here


CASES = [
    Case("weights-are-numbers", masks_itself, sees_itself),
    Case("weights-not-negative", scores_over_their_sum, squares_over_their_sum),
    Case("weights-sum-to-one", squares, squares_over_their_sum),
    Case("softmax-over-keys", over_the_queries, over_the_keys),
    Case("softmax-over-keys", over_the_heads, over_the_keys),
    Case("weights-kept", scaled_after_the_softmax, over_the_keys),
    Case("weights-kept", masked_after_the_softmax, sees_itself),
]
