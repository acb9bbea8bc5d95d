"""Pairs of places that learned queries pool, the last of which a place without a token stands in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from property_cases import drawn, of_x
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def pooled(x: Tensor, *, is_masked: bool = True) -> Tensor:
    """Each channel of two places, by weights of its own (Enformer); an odd place is beside one that is padded in."""
    beside = x.shape[1] % 2
    scores = F.pad(torch.einsum("bnd,de->bne", x, drawn(8, 8, seed=0)), (0, 0, 0, beside)).unflatten(1, (-1, 2))
    if beside and is_masked:
        scores[:, -1, 1] = -torch.finfo(scores.dtype).max
    return (F.pad(x, (0, 0, 0, beside)).unflatten(1, (-1, 2)) * scores.softmax(2)).sum(2)


@pytest.mark.parametrize("tokens", [4, 5])
def test_a_place_of_no_token_is_no_key_of_a_learned_query(tokens: int) -> None:
    analysis = analyze(of_x(pooled, tokens=tokens))
    assert (analysis.violations, analysis.missing, analysis.has_scores) == ([], [], True)


def test_a_place_of_no_token_is_hidden() -> None:
    found = analyze(of_x(lambda x: pooled(x, is_masked=False), tokens=5)).violations
    assert [each.property for each in found] == ["padding-hidden"]
