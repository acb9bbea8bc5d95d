"""Masks of summaries of the tokens that fill the weights with -inf, and not the scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, of_module
from regard.check.properties.analyze import analyze

KEYS = 3


class OfSummaries(nn.Module):
    """Attention to a few sums of the tokens (Linformer)."""

    is_behind = False

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.few = nn.Parameter(torch.randn(KEYS, 4))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.q(x), self.few @ self.k(x), self.few @ self.v(x)
        weights = q @ k.mT * WIDTH**-0.5
        if not self.is_behind and attn_mask is not None:
            weights = weights.masked_fill(attn_mask, -torch.inf)
        weights = weights.softmax(-1)
        if self.is_behind and attn_mask is not None:
            weights = weights.masked_fill(attn_mask, -torch.inf)
        return weights @ v


class OfAllowed(OfSummaries):
    """The same with a mask of the keys that are seen, beside one that hides others."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.q(x), self.few @ self.k(x), self.few @ self.v(x)
        scores = (q @ k.mT * WIDTH**-0.5).masked_fill(torch.arange(KEYS) > 1, -torch.inf)
        if attn_mask is not None:
            scores = torch.where(attn_mask, scores, -torch.inf)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize(("kind", "is_behind"), [(OfSummaries, True), (OfSummaries, False), (OfAllowed, False)])
def test_a_mask_behind_the_softmax_leaves_no_numbers(
    kind: type[nn.Module], is_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "is_behind", is_behind)
    call = of_module(kind)
    call.masks = ["attn_mask"]
    assert [each.property for each in analyze(call, masks=False).violations] == ["blocked-scores"] * is_behind
