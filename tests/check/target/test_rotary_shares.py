"""A share of the channels of a head that rotary positions turn: of a small head it has to be pairs as well."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class PartlyTurned(nn.Module):
    """Attention whose first channels of each head are turned by their position."""

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, rotary_pct: float = 0.25) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.width = hidden_size // num_heads
        self.turned = int(self.width * rotary_pct)
        self.qkv, self.out = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def turn(self, x: Tensor) -> Tensor:
        turned, kept = x[..., : self.turned], x[..., self.turned :]
        frequencies = 10000 ** (-torch.arange(0, self.turned, 2).double() / self.turned)
        angles = torch.outer(torch.arange(x.shape[-2]).double(), frequencies).repeat(1, 2)
        first, second = turned[..., : self.turned // 2], turned[..., self.turned // 2 :]
        turned = turned * angles.cos() + torch.cat([-second, first], -1) * angles.sin()
        return torch.cat([turned.to(x.dtype), kept], -1)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.num_heads, self.width).permute(2, 0, 3, 1, 4)
        scores = self.turn(q) @ self.turn(k).mT / math.sqrt(self.width)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


class KeysTurnedBack(PartlyTurned):
    """The same mistake is found with the share that is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.num_heads, self.width).permute(2, 0, 3, 1, 4)
        scores = self.turn(q) @ self.turn(k.flip(-2)).flip(-2).mT / math.sqrt(self.width)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize(("kind", "is_right"), [(PartlyTurned, True), (KeysTurnedBack, False)])
def test_a_share_that_leaves_an_odd_number_of_channels_is_not_asked_of_a_small_head(
    kind: type[nn.Module], is_right: bool
) -> None:
    told = check(kind)
    assert (told.verdict == "wrong") != is_right, told
    assert told.verdict != "undetermined"
