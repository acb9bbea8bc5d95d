"""Scores that pool values as they are, where an option of the code would take their softmax."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from property_cases import drawn
from regard.check.properties.analyze import analyze
from regard.check.target import invocations

V, Q = drawn(2, 4, 8, seed=0), drawn(2, 5, 8, seed=1)


def pooled_by_maps(v: Tensor, q: Tensor, softmax: bool = False) -> Tensor:
    maps = q @ v.mT
    if softmax:
        maps = maps.flatten(1).softmax(-1).view_as(maps)
    return maps @ v


def normalized_on_demand(v: Tensor, q: Tensor, use_softmax: bool = False) -> Tensor:
    maps = q @ v.mT
    if use_softmax:
        maps = maps.softmax(-1)
    return maps @ v


def without_an_option(v: Tensor, q: Tensor) -> Tensor:
    return (q @ v.mT / 8**0.5) @ v


def of_an_option_that_nothing_reads(v: Tensor, q: Tensor, softmax: bool = False) -> Tensor:
    return (q @ v.mT / 8**0.5) @ v


def weights_of(function: Any) -> list[tuple[str, str]]:
    call = next(invocations(function, args={}, inputs={"v": V, "q": Q}))
    return [(each.kind, each.property) for each in analyze(call).findings if each.step == "weights"]


@pytest.mark.parametrize("function", [pooled_by_maps, normalized_on_demand])
def test_an_option_that_is_off_says_that_scores_are_weights(function: Any) -> None:
    assert weights_of(function) == [("design", "weights-unnormalized")]


@pytest.mark.parametrize("function", [without_an_option, of_an_option_that_nothing_reads])
def test_scores_are_no_weights_where_no_option_says_so(function: Any) -> None:
    assert "violation" in {kind for kind, _ in weights_of(function)}
