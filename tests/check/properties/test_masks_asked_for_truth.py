"""Masks whose truth is asked: a tensor of several numbers has none, and every call with a mask raises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class AsksForTruth(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if attn_mask:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        return scores.softmax(-1) @ v


class ScaledByTheCaller(nn.Module):
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, attn_mask: Tensor | None = None
    ) -> Tensor:
        scores = q @ k.mT if scale is None else q @ k.mT * scale
        if attn_mask:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        return scores.softmax(-1) @ v


class AsksForNone(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        return scores.softmax(-1) @ v


class OfAFlag(nn.Module):
    """The mask is a flag: whether later tokens are hidden."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: bool = False) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask:
            mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(mask, -torch.inf)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("kind", [AsksForTruth, ScaledByTheCaller])
def test_a_mask_of_several_numbers_has_no_truth(kind: type[nn.Module]) -> None:
    report = check(kind)
    assert report.verdict == "wrong"
    assert [each.id for each in report.causes] == ["mask-argument"]


@pytest.mark.parametrize("kind", [AsksForNone, OfAFlag])
def test_a_mask_may_be_none_or_a_flag(kind: type[nn.Module]) -> None:
    assert check(kind).verdict != "wrong"
