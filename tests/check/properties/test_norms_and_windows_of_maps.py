"""Maps of features: what a convolution makes is normalized over all places, or cut into windows by a convolution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

CHANNELS, HEADS = 8, 2


class Normed(nn.Module):
    """Queries, keys and values of each place, after a norm of all places."""

    axis = -1

    def __init__(self, norm: type[nn.Module], *sizes: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(CHANNELS, 3 * CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.norm = norm(*sizes)

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm(self.qkv(x)).flatten(2).unflatten(1, (3, HEADS, -1)).mT
        q, k, v = made.unbind(1)
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(self.axis) @ v
        return self.out(read.mT.flatten(1, 2).view(x.shape))


class NormedOverTheQueries(Normed):
    axis = -2


class CutByAConvolution(nn.Module):
    """Windows of 2 x 2; what the tokens of one read is averaged."""

    axis = -1

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.qkv = nn.Conv2d(CHANNELS, 3 * CHANNELS, 1)
        self.register_buffer("cut", torch.eye(4).view(4, 1, 2, 2).repeat(3 * CHANNELS, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        made: Any = self.qkv(x)
        windows = nn.functional.conv2d(made, self.cut, stride=self.stride, groups=3 * CHANNELS)  # type: ignore[arg-type]
        rows, columns = windows.shape[2:]
        windows = windows.flatten(2).transpose(1, 2).unflatten(2, (3, HEADS, -1, 4)).mT
        q, k, v = windows.unbind(2)
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(self.axis) @ v
        return read.mean(-2).flatten(2).transpose(1, 2).unflatten(2, (rows, columns))


class CutOverTheQueries(CutByAConvolution):
    axis = -2


def analyzed(module: nn.Module) -> Analysis:
    prepare(module, 1)
    x = torch.randn(2, CHANNELS, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return analyze(Invocation(module, {"x": x}, ["x"], [Stream("x", "x", 0, (2, 3))]))


@pytest.mark.parametrize("norm", [(nn.GroupNorm, 3, 3 * CHANNELS), (nn.InstanceNorm2d, 3 * CHANNELS)])
def test_norms_of_all_places_mix_no_queries(norm: tuple[Any, ...]) -> None:
    found = analyzed(Normed(*norm))
    assert found.complete
    assert found.violations == []
    assert [each.property for each in analyzed(NormedOverTheQueries(*norm)).violations] == ["softmax-over-keys"]


def test_numbers_that_a_convolution_moves_are_those_of_their_places() -> None:
    found = analyzed(CutByAConvolution(2))
    assert found.complete
    assert found.violations == []
    assert any("its own mask: blocks" in each.message for each in found.designs)
    assert [each.property for each in analyzed(CutOverTheQueries(2)).violations] == ["softmax-over-keys"]


def test_windows_may_overlap() -> None:
    found = analyzed(CutByAConvolution(1))
    assert found.complete
    assert found.violations == []
    assert any("windows of 4 tokens that overlap" in each.message for each in found.designs)
    assert analyzed(CutOverTheQueries(1)).violations
