"""Windows of language models, whose calls have fewer tokens: asked with more, in each of the layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

WIDTH, VOCABULARY = 12, 40


class Local(nn.Module):
    """Causal attention: each token sees exactly the last `window` tokens, itself included."""

    def __init__(self, window: int, farthest: int) -> None:
        super().__init__()
        self.window, self.farthest = window, farthest
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, 2, -1).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(tokens, tokens).tril() * torch.ones(tokens, tokens).triu(-self.farthest)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(allowed == 0, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OfLayers(nn.Module):
    """A language model whose layers see the last few tokens each."""

    layers: int
    is_one_too_many: bool

    def __init__(self, window: int = 6) -> None:
        super().__init__()
        farthest = window if self.is_one_too_many else window - 1
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.attentions = nn.ModuleList(Local(window, farthest) for _ in range(self.layers))
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for attention in self.attentions:
            x = x + attention(self.norm(x))
        return self.logits(x)


class OneLayer(OfLayers):
    layers, is_one_too_many = 1, False


class OneLayerSeesOneTooMany(OfLayers):
    layers, is_one_too_many = 1, True


class TwoLayers(OfLayers):
    layers, is_one_too_many = 2, False


class TwoLayersSeeOneTooMany(OfLayers):
    layers, is_one_too_many = 2, True


@pytest.mark.parametrize("kind", [OneLayer, TwoLayers])
def test_as_many_tokens_as_the_window_are_right(kind: type[nn.Module]) -> None:
    report = check(kind)
    assert report.verdict == "different by design"
    assert "as window=6 says" in str(report)


@pytest.mark.parametrize("kind", [OneLayerSeesOneTooMany, TwoLayersSeeOneTooMany])
def test_one_token_more_than_the_window_is_wrong(kind: type[nn.Module]) -> None:
    report = check(kind)
    assert [each.id for each in report.causes] == ["window-as-documented"]


def test_layers_in_a_list_are_followed_one_by_one_and_the_logits_are_no_layer() -> None:
    assert "pre-norm: attention, attention, each added to its input" in check(TwoLayers).notes
