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

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

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


class NormedBehindTheResidual(Normed):
    """The map is normalized once what was read is added to it."""

    def __init__(self) -> None:
        super().__init__(nn.GroupNorm, 2, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).flatten(2).unflatten(1, (3, HEADS, -1)).mT.unbind(1)
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(self.axis) @ v
        return self.norm(x + self.out(self.placed(read.mT.flatten(1, 2)).view(x.shape)))  # type: ignore[no-any-return]

    def placed(self, read: Tensor) -> Tensor:
        return read


class NormedInOtherPlaces(NormedBehindTheResidual):
    def placed(self, read: Tensor) -> Tensor:
        return read.roll(1, -1)


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


def test_a_norm_of_all_places_of_the_output_moves_no_token() -> None:
    found = analyzed(NormedBehindTheResidual())
    assert found.violations == []
    assert any("a norm over all tokens" in each.message for each in found.designs)
    assert analyzed(NormedInOtherPlaces()).violations


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


class ChannelsOfAMap(nn.Module):
    """Channels attend to each other, after a convolution of neighbours whose ReLU makes some numbers 0."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.out = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.relu(self.norm(self.conv(x))).flatten(2)
        weights = (made @ made.mT).softmax(-1)
        return self.out((weights @ made).unflatten(2, x.shape[2:]) + x)


class PlacesAndChannels(nn.Module):
    """Beside places that attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.channels = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), ChannelsOfAMap()
        self.qkv = nn.Conv2d(CHANNELS, 3 * CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(torch.relu(self.conv(x))).flatten(2).mT.chunk(3, -1)
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return read.mT.unflatten(2, x.shape[2:]) + self.channels(x)


def test_channels_that_a_relu_made_zero_are_of_their_places() -> None:
    module = PlacesAndChannels().double().eval()
    prepare(module, 3)
    x = torch.randn(2, CHANNELS, 4, 6, dtype=torch.float64)
    analysis = analyze(Invocation(module, {"x": x}, ["x"], [Stream("x", "x", 0, (2, 3), None)]))
    assert analysis.violations == []
    assert "linear-attention" in {each.property for each in analysis.findings}


class PoolsDates(nn.Module):
    """A learned query for each head asks keys; values are the channels of what a convolution made, as they are."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.query, self.keys = nn.Parameter(torch.randn(heads, 1, 4)), nn.Linear(CHANNELS, 4 * heads)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.keys(v), self.values(v)))
        return ((self.query @ keys.mT / 2).softmax(-1) @ values)[:, :, 0].flatten(1)

    def values(self, v: Tensor) -> Tensor:
        return v


class PoolsSums(PoolsDates):
    def values(self, v: Tensor) -> Tensor:
        return v + v.mean(1, keepdim=True)


class OfDates(nn.Module):
    """A norm of all channels and dates stands between the convolution and the attention."""

    def __init__(self, pools: nn.Module, dates: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(CHANNELS, CHANNELS, 1), nn.LayerNorm((CHANNELS, dates))
        self.pools, self.out = pools, nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x.mT)).mT
        return self.out(self.pools(x, x, x))


class OfOtherDates(OfDates):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x.mT)).mT
        return self.out(self.pools(x, x.clone(), x))


def of_dates(kind: type[OfDates], pools: type[PoolsDates]) -> set[str]:
    module = kind(pools(), 5).double().eval()
    prepare(module, 3)
    x = torch.randn(2, 5, CHANNELS, dtype=torch.float64)
    analysis = analyze(Invocation(module, {"x": x}, ["x"], [Stream("x", "x", 0, (1,), None)]))
    return {each.property for each in analysis.violations}


def test_what_a_layer_norm_of_a_map_norms_is_of_its_places() -> None:
    assert of_dates(OfDates, PoolsDates) == set()
    assert of_dates(OfDates, PoolsSums) == {"value-of-one-token"}


def test_learned_queries_may_be_handed_one_tensor_three_times() -> None:
    assert of_dates(OfDates, PoolsDates) == set()
    assert of_dates(OfOtherDates, PoolsDates) == {"queries-from-their-input"}
