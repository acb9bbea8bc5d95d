"""Queries that see what is before them and not themselves: on purpose, or by a mask that is off by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from property_cases import joined, of_x, split
from regard.check.properties.analyze import analyze


def weights_of(x: Tensor, fill: float = -1e9) -> tuple[Tensor, Tensor]:
    """The weights, and which keys are hidden."""
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu()
    return (split(x) @ split(x).mT / 2).masked_fill(hidden, fill).softmax(-1), hidden


def read(x: Tensor, weights: Tensor) -> Tensor:
    return joined(weights @ split(x))


def times_a_mask_of_queries(x: Tensor) -> Tensor:
    start = torch.ones(x.shape[1], 1)
    start[0] = 0
    return read(x, weights_of(x)[0] * start)


def filled_by_a_mask_of_queries(x: Tensor) -> Tensor:
    return read(x, weights_of(x)[0].masked_fill((torch.arange(x.shape[1]) == 0)[:, None], 0.0))


def chosen_by_a_mask_of_queries(x: Tensor) -> Tensor:
    weights, hidden = weights_of(x, -torch.inf)
    return read(x, torch.where(hidden.all(-1, keepdim=True), torch.zeros_like(weights), weights))


def written(x: Tensor) -> Tensor:
    weights, _ = weights_of(x)
    weights[..., 0, :] = 0.0
    return read(x, weights)


def joined_behind_zeros(x: Tensor) -> Tensor:
    weights, _ = weights_of(x)
    return read(x, torch.cat([torch.zeros_like(weights[..., :1, :]), weights[..., 1:, :]], -2))


def documented(x: Tensor) -> Tensor:
    """Each token reads the tokens that are strictly before it."""
    return read(x, weights_of(x)[0])


def told_by_a_comment(x: Tensor) -> Tensor:
    # a pixel reads all earlier ones, excluding
    # itself
    return read(x, weights_of(x)[0])


@pytest.mark.parametrize(
    "function",
    [
        times_a_mask_of_queries,
        joined_behind_zeros,
        filled_by_a_mask_of_queries,
        chosen_by_a_mask_of_queries,
        written,
        documented,
        told_by_a_comment,
    ],
)
def test_what_is_before_may_be_all_that_is_meant(function: Any) -> None:
    analysis = analyze(of_x(function))
    assert analysis.violations == []
    assert "a query does not see itself" in next(e.message for e in analysis.findings if e.property == "mask-pattern")


def off_by_one(x: Tensor) -> Tensor:
    """Causal: hides the strictly upper triangle."""
    return read(x, weights_of(x)[0])


def hidden_twice(x: Tensor) -> Tensor:
    weights, hidden = weights_of(x)
    return read(x, weights.masked_fill(hidden, 0.0))


def times_the_same_mask(x: Tensor) -> Tensor:
    weights, hidden = weights_of(x)
    return read(x, weights * (~hidden).to(x.dtype))


def with_numbers_for_nan(x: Tensor) -> Tensor:
    return read(x, weights_of(x, -torch.inf)[0].nan_to_num())


def joined_behind_its_own(x: Tensor) -> Tensor:
    weights, _ = weights_of(x)
    return read(x, torch.cat([weights[..., :1, :], weights[..., 1:, :]], -2))


def two_off(x: Tensor) -> Tensor:
    """Reads strictly earlier tokens."""
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(-1)
    return read(x, (split(x) @ split(x).mT / 2).masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num())


@pytest.mark.parametrize(
    "function", [off_by_one, hidden_twice, times_the_same_mask, with_numbers_for_nan, joined_behind_its_own, two_off]
)
def test_a_mask_that_is_off_by_one_is_found(function: Any) -> None:
    assert [each.property for each in analyze(of_x(function)).violations] == ["mask-pattern"]
