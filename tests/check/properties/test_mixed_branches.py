"""A softmax over branches, which are layers of different kernels: no query meets a key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import joined
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

CHANNELS = 6


class Branches(nn.Module):
    """Three convolutions, and how much of each channel each of them gives, by the mean of all places."""

    axis = 0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, size, padding=size // 2) for size in (1, 3, 5))
        self.squeeze = nn.Linear(CHANNELS, 4)
        self.shares = nn.ModuleList(nn.Linear(4, CHANNELS) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.stack([layer(x).relu() for layer in self.layers])
        summary = self.squeeze(made.sum(0).mean((2, 3)))
        shares = torch.stack([share(summary) for share in self.shares]).softmax(self.axis)
        return (shares[..., None, None] * made).sum(0)


class OverTheSamples(Branches):
    axis = 1


class HeadsOfTheirOwn(nn.Module):
    """Attention to the heads of the same token, each made by layers of its own, is none to tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(8, 4) for _ in range(2)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.stack([layer(x) for layer in layers], 2) for layers in (self.q, self.k, self.v))
        return joined(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2))


def analyzed(module: nn.Module, x: Tensor, *token_axes: int) -> Analysis:
    prepare(module, 1)
    return analyze(Invocation(module, {"x": x.double()}, ["x"], [Stream("x", "x", 0, token_axes)]))


def test_branches_that_are_mixed_by_a_softmax_are_a_design() -> None:
    x = torch.randn(2, CHANNELS, 4, 5, generator=torch.Generator().manual_seed(0))
    found = analyzed(Branches(), x, 2, 3)
    assert [each.property for each in found.designs] == ["mixed-branches"]
    assert found.complete
    assert found.violations == []
    assert all(each.property != "mixed-branches" for each in analyzed(OverTheSamples(), x, 2, 3).findings)


def test_heads_that_meet_one_another_are_no_branches() -> None:
    found = analyzed(HeadsOfTheirOwn(), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)), 1)
    assert "attends-to-tokens" in {each.property for each in found.violations}
