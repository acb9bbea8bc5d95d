"""Scores that are clamped to a limit are a design; scores that are clamped otherwise are not called so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import drawn, joined, of_x, split
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

Weights = Callable[[Tensor], Tensor]


def attention(weights: Weights) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in (x @ drawn(8, 24, seed=3) / 8**0.5).chunk(3, -1))
        return joined(weights(q @ k.mT / 2) @ v) @ drawn(8, 8, seed=4)

    return forward


def clamped(scores: Tensor) -> Tensor:
    return scores.clamp(-0.5, 0.5).softmax(-1)


def clamped_then_hidden(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return torch.nn.functional.hardtanh(scores, -0.5, 0.5).masked_fill(later, -torch.inf).softmax(-1)


def never_negative(scores: Tensor) -> Tensor:
    return scores.clamp(min=0).softmax(-1)


def moved_by_what_was_cut(scores: Tensor) -> Tensor:
    return (scores + scores.clamp(-0.5, 0.5)).softmax(-1)


@pytest.mark.parametrize("weights", [clamped, clamped_then_hidden])
def test_scores_within_a_limit_are_a_design(weights: Weights) -> None:
    analysis = analyze(of_x(attention(weights)))
    assert ("clamped-scores", "design") in {(each.property, each.kind) for each in analysis.findings}
    assert analysis.complete
    assert not analysis.violations


@pytest.mark.parametrize("weights", [never_negative, moved_by_what_was_cut])
def test_scores_that_are_cut_otherwise_are_no_scores_within_a_limit(weights: Weights) -> None:
    assert all(each.property != "clamped-scores" for each in analyze(of_x(attention(weights))).findings)
