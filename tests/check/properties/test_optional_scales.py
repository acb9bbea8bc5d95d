"""Scores that have a scale where a caller hands one over."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class Handed(nn.Module):
    """Scaled dot-product attention."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        scores = q @ k.mT
        if scale:
            scores = scores * scale
        return scores.softmax(-1) @ v


class Divided(nn.Module):
    """Scaled dot-product attention."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        scores = q @ k.mT
        return (scores if scale is None else scores / scale).softmax(-1) @ v


class Unread(Handed):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v


class ScalesTheOutput(Handed):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        out = (q @ k.mT).softmax(-1) @ v
        return out if scale is None else out * scale


class Promised(Handed):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """The same.

        Args:
            scale: of the scores; by default 1/sqrt(width).
        """
        return super().forward(q, k, v, scale)


@pytest.mark.parametrize("kind", [Handed, Divided])
def test_scores_may_be_scaled_by_what_is_handed_over_alone(kind: type[nn.Module]) -> None:
    assert check(kind).verdict in RIGHT


@pytest.mark.parametrize("kind", [Unread, ScalesTheOutput, Promised])
def test_a_scale_that_scales_no_scores_or_is_promised_is_none(kind: type[nn.Module]) -> None:
    assert check(kind).verdict == "wrong"
