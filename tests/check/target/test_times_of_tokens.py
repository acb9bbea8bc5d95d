"""Arguments that say when each token was: they are its positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.check import check
from regard.check.target.names import call_meaning


class Decays(nn.Module):
    """Events (b, n, d) at growing times (b, n): a weight falls with the time that has passed."""

    def __init__(self, dim: int, sign: int = -1) -> None:
        super().__init__()
        self.sign, self.qkv, self.rate = sign, nn.Linear(dim, 3 * dim), nn.Parameter(torch.zeros(()))

    def forward(self, events: Tensor, times: Tensor) -> Tensor:
        q, k, v = self.qkv(events).chunk(3, -1)
        passed = times[:, :, None] - times[:, None, :]
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + self.sign * self.rate.exp() * passed
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


def test_times_are_positions_and_a_weight_that_falls_with_them_is_a_design() -> None:
    assert call_meaning("times") == call_meaning("timestamps") == "positions"
    assert call_meaning("time") != "positions"
    assert check(Decays, args={"dim": 8}).verdict == "different by design"


def test_a_weight_that_grows_with_the_time_is_wrong() -> None:
    assert check(Decays, args={"dim": 8, "sign": 1}).verdict == "wrong"
