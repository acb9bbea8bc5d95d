"""Values that a convolution of them is added to: their neighbours, and not tokens from anywhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch.nn.functional as F
from torch import Tensor

from property_cases import drawn, of_x
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

SIDES = (3, 4)


def attended(x: Tensor, values: Tensor) -> Tensor:
    q, k = (x @ drawn(8, 8, seed=seed) for seed in (0, 1))
    return (q @ k.mT / 8**0.5).softmax(-1) @ values


def on_a_map(x: Tensor, *, is_scrambled: bool = False, dilation: int = 1) -> Tensor:
    """A depthwise convolution of the map of the values is added to them (Shunted Transformer)."""
    values = x @ drawn(8, 8, seed=2)
    places = (values.reshape(len(x), 8, -1) if is_scrambled else values.mT).unflatten(-1, SIDES)
    near = F.conv2d(places, drawn(8, 1, 3, 3, seed=3), padding=dilation, dilation=dilation, groups=8)
    return attended(x, values + near.flatten(2).mT)


def on_a_line(x: Tensor) -> Tensor:
    """The same of a sequence."""
    values = x @ drawn(8, 8, seed=2)
    return attended(x, values + F.conv1d(values.mT, drawn(8, 1, 3, seed=3), padding=1, groups=8).mT)


def with_a_mean(x: Tensor) -> Tensor:
    """The mean of all values is added to each."""
    values = x @ drawn(8, 8, seed=2)
    near = F.conv1d(values.mT, drawn(8, 1, 3, seed=3), padding=1, groups=8).mT
    return attended(x, values + near + values.mean(1, keepdim=True))


@pytest.mark.parametrize("right", [on_a_map, partial(on_a_map, dilation=2), on_a_line])
def test_values_may_hold_their_neighbours(right: partial[Tensor]) -> None:
    analysis = analyze(of_x(right, tokens=12))
    assert not analysis.violations
    assert "values-of-neighbours" in [each.property for each in analysis.designs]


@pytest.mark.parametrize("wrong", [partial(on_a_map, is_scrambled=True), with_a_mean])
def test_values_hold_no_tokens_from_anywhere(wrong: partial[Tensor]) -> None:
    assert "value-of-one-token" in [each.property for each in analyze(of_x(wrong, tokens=12)).violations]
