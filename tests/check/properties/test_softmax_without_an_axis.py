"""Softmaxes by hand whose exponentials are summed without an axis: all queries share one sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import WIDTH, drawn, joined, of_x, split
from regard.check.properties.analyze import analyze

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (80, 81, 82))


def attention(x: Tensor, weights: Callable[[Tensor], Tensor]) -> Tensor:
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    return joined(weights(q @ k.mT * q.shape[-1] ** -0.5) @ v)


def by_query(scores: Tensor) -> Tensor:
    numbers = (scores - scores.max()).exp()  # the same number for all: it cancels
    return numbers / numbers.sum(-1, keepdim=True)


def by_head(scores: Tensor) -> Tensor:
    numbers = (scores - scores.amax((-1, -2), keepdim=True)).exp()
    return numbers / numbers.sum((-1, -2), keepdim=True)


def by_sample(scores: Tensor) -> Tensor:
    return torch.stack([each.exp() / each.exp().sum() for each in scores])


def of_all(scores: Tensor) -> Tensor:
    numbers = torch.exp(scores - scores.max())
    return numbers / numbers.sum()


@pytest.mark.parametrize(
    ("weights", "over"),
    [
        (by_head, "all queries and keys of a head"),
        (by_sample, "all queries and keys of a sample"),
        (of_all, "all queries and keys, of all samples"),
    ],
)
def test_exponentials_that_are_summed_over_all_queries_are_told(weights: Callable[[Tensor], Tensor], over: str) -> None:
    found = {each.property: each.message for each in analyze(of_x(lambda x: attention(x, weights))).violations}
    assert found.keys() <= {"softmax-over-keys", "samples-apart"}
    assert over in found["softmax-over-keys"]


def test_a_maximum_of_all_scores_cancels_beside_the_sum_of_each_query() -> None:
    assert not analyze(of_x(lambda x: attention(x, by_query))).violations
