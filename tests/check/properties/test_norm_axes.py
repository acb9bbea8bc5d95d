"""Norms of queries and keys: over channels in any way they are a design, over the heads a violation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from property_cases import drawn, joined, of_x, split
from property_cases.position_cases import rotated
from regard.check.properties.analyze import analyze


def root_mean_square(x: Tensor, axis: int) -> Tensor:
    return x * torch.rsqrt((x * x).mean(axis, keepdim=True) + 1e-6)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined((q @ k.mT / 2).softmax(-1) @ v)


def projected(x: Tensor) -> list[Tensor]:
    return [x @ drawn(8, 8, seed=seed) for seed in range(3)]


def of_all_heads(x: Tensor) -> Tensor:
    q, k, v = projected(x)
    return attended(split(root_mean_square(q, -1)), split(root_mean_square(k, -1)), split(v))


def of_shared_keys(x: Tensor) -> Tensor:
    q, k, v = projected(x)
    k, v = (each[..., :4][:, None].expand(-1, 2, -1, -1) for each in (root_mean_square(k[..., :4], -1), v))
    return attended(root_mean_square(split(q), -1), k, v)


def rotated_after(x: Tensor) -> Tensor:
    q, k, v = (split(each) for each in projected(x))
    angles = torch.arange(4.0).double()[:, None] * torch.tensor([1.0, 0.1]).double().repeat(2)
    q, k = (rotated(root_mean_square(each, -1), angles) for each in (q, k))
    return attended(q, k, v)


@pytest.mark.parametrize("function", [of_all_heads, of_shared_keys, rotated_after])
def test_norms_over_channels_are_a_design(function: Any) -> None:
    assert analyze(of_x(function)).violations == []


def rotated_after_a_norm_over_heads(x: Tensor) -> Tensor:
    q, k, v = (split(each) for each in projected(x))
    angles = torch.arange(4.0).double()[:, None] * torch.tensor([1.0, 0.1]).double().repeat(2)
    q, k = (rotated(root_mean_square(each, 1), angles) for each in (q, k))
    return attended(q, k, v)


def keys_alone(x: Tensor) -> Tensor:
    q, k, v = (split(each) for each in projected(x))
    return attended(q, root_mean_square(k, 1), v)


@pytest.mark.parametrize("function", [rotated_after_a_norm_over_heads, keys_alone])
def test_norms_over_heads_are_a_violation(function: Any) -> None:
    (found,) = analyze(of_x(function)).violations
    assert found.property == "norm-over-channels"


def of_each_head_as_it_does_not(x: Tensor) -> Tensor:
    """The vectors of queries and keys are brought to unit RMS in each head by itself."""
    return of_all_heads(x)


def of_all_heads_with_a_scale_of_each(x: Tensor) -> Tensor:
    """Queries and keys are normalized, and each head has a scale of its own."""
    return of_all_heads(x)


def of_the_whole_width(x: Tensor) -> Tensor:
    """Queries and keys are normalized over the whole width, before it is split into the channels of each head."""
    return of_all_heads(x)


def test_a_norm_of_all_heads_is_a_violation_where_it_is_said_to_be_of_each() -> None:
    (found,) = analyze(of_x(of_each_head_as_it_does_not)).violations
    assert found.property == "norm-over-channels"
    assert "of all 2 heads" in found.message
    for each in (of_all_heads_with_a_scale_of_each, of_the_whole_width):
        assert analyze(of_x(each)).violations == []
