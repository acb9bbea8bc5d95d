"""Queries and keys behind a ReLU: no one factor makes them of what their matrices return, and some are zeros."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import drawn
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

HEADS = 4


class Bent(nn.Module):
    """Heads of width 4, whose queries and keys are nowhere negative."""

    def __init__(self, factor: float, heads: int = HEADS) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4 * heads, 4 * heads) for _ in range(3))
        self.factor, self.heads = factor, heads

    def forward(self, x: Tensor) -> Tensor:
        made = (self.q(x).relu(), self.k(x).relu(), self.v(x))
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in made)
        return ((self.factor * (q @ k.mT)).softmax(-1) @ v).transpose(1, 2).flatten(2)


def bent(factor: float, tokens: int = 4, heads: int = HEADS) -> Analysis:
    module = Bent(factor, heads)
    prepare(module, 1)
    return analyze(tokens_call(module, drawn(3, tokens, 4 * heads, seed=0)))


@pytest.mark.parametrize(
    ("factor", "heads", "kinds"), [(4**-0.5, 4, ["holds"]), (8**-0.5, 8, ["violation"]), (0.3, 8, []), (1.0, 1, [])]
)
def test_a_scale_by_the_number_of_heads_is_wrong(factor: float, heads: int, kinds: list[str]) -> None:
    """Any other number may make up for what the activation does."""
    found = bent(factor, heads=heads).findings
    assert [each.kind for each in found if each.property == "scale"] == kinds


def test_what_a_query_of_zeros_sees_is_what_it_sees_in_other_heads() -> None:
    analysis = bent(4**-0.5, tokens=16, heads=8)
    assert analysis.violations == []
    assert not any(each.property == "mask-unknown" for each in analysis.findings)


def test_a_mask_of_one_head_alone_is_seen_beside_queries_of_zeros() -> None:
    class OfOneHead(Bent):
        def forward(self, x: Tensor) -> Tensor:
            made = (self.q(x).relu(), self.k(x).relu(), self.v(x))
            q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in made)
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            hidden = torch.stack([later, *[torch.zeros_like(later)] * (HEADS - 1)])
            return (
                ((self.factor * (q @ k.mT)).masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)
            )

    module = OfOneHead(4**-0.5)
    prepare(module, 1)
    analysis = analyze(tokens_call(module, drawn(3, 7, 4 * HEADS, seed=0)))
    assert any(each.property in ("mask-unknown", "mask-same-for-heads") for each in analysis.findings)
