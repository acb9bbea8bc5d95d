"""Segments that a module compares with themselves: they say which of several packed texts a token is of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class OfItsText(nn.Module):
    """Several texts in a row; seg gives each token's text. Causal within its own text."""

    def __init__(self, d_model: int = 24, n_heads: int = 3) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def seen(self, seg: Tensor) -> Tensor:
        return seg[:, :, None] == seg[:, None, :]

    def forward(self, x: Tensor, seg: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        seen = self.seen(seg) & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen[:, None], -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OfItsTextAsWell(OfItsText):
    def seen(self, seg: Tensor) -> Tensor:
        return seg.unsqueeze(-1) == seg.unsqueeze(1)


class OfEarlierTexts(OfItsText):
    def seen(self, seg: Tensor) -> Tensor:
        return seg[:, :, None] >= seg[:, None, :]


@pytest.mark.parametrize("right", [OfItsText, OfItsTextAsWell])
def test_a_text_that_sees_itself_alone_is_right(right: type[nn.Module]) -> None:
    assert check(right).verdict in ("right", "right in another layout or convention", "different by design")


def test_a_text_that_sees_earlier_texts_is_wrong() -> None:
    assert check(OfEarlierTexts).verdict == "wrong"
