"""Maps whose sides are named by the constructor's arguments, and constructors that are told a dict of options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from einops import rearrange
from target_calls import axes, first
from torch import Tensor, nn

from regard.check import check
from regard.check.target.names import side_names
from regard.check.target.written_axes import written_map, written_sides

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class Series(nn.Module):
    """Over the segments of each series of several; there is a learned vector for each segment."""

    def __init__(self, n_segments: int, d_model: int, axis: int = -1) -> None:
        super().__init__()
        self.axis, self.qkv = axis, nn.Linear(d_model, 3 * d_model)
        self.places = nn.Parameter(torch.randn(n_segments, d_model))

    def forward(self, x: Tensor) -> Tensor:
        rows = rearrange(x, "b series n_segments d_model -> (b series) n_segments d_model") + self.places
        q, k, v = self.qkv(rows).chunk(3, -1)
        return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(self.axis) @ v).view(x.shape)


class Documented(Series):
    def forward(self, x: Tensor) -> Tensor:
        """The same.

        Args:
            x: (batch, variables, n_segments, d_model)
        """
        q, k, v = self.qkv(x.flatten(0, 1) + self.places).chunk(3, -1)
        return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(self.axis) @ v).view(x.shape)


SEGMENTS = {"n_segments": 5, "d_model": 16}


@pytest.mark.parametrize("kind", [Series, Documented])
def test_a_side_is_as_long_as_the_size_it_is_named_after(kind: type[nn.Module]) -> None:
    call = first(kind, **SEGMENTS)
    assert call.arguments["x"].shape[2:] == (5, 16)
    assert axes(call) == [("x", 0, (1, 2), None)]
    assert check(kind, args=SEGMENTS).verdict in RIGHT
    assert check(kind, args={**SEGMENTS, "axis": -2}).verdict == "wrong"


def test_sides_are_read_where_they_are_written() -> None:
    source = 'rearrange(x, "b n s dim -> (b n) s dim")\nrearrange(q, "b h n d_model -> b n (h d_model)")'
    assert (written_map(source, "x"), written_map(source, "q")) == ("byxd", "")
    assert written_sides(source, "x", "byxd", {"s": 5}) == (None, 5)
    assert written_sides(source, "x", "byxd", {"heads": 5}) == (None, None)
    assert written_sides(source, "x", "btd", {"s": 5}) == (None, None)


def test_the_width_is_no_side_of_a_layout_with_channels_in_front() -> None:
    source = 'rearrange(x, "batch n t d_model -> (batch n) t d_model")'
    assert written_sides(source, "x", "bdyx", {"d_model": 32, "t": 5}) == (None, None)
    assert written_sides(source, "x", "byxd", {"d_model": 32, "t": 5}) == (None, 5)


class Sphere(nn.Module):
    """A number for each place of a map, which is added to all scores: the sine of its latitude."""

    def __init__(self, width: int, nlat: int = 8, nlon: int = 16, drop: float = 0.1) -> None:
        super().__init__()
        self.drop, self.of_places = drop, nn.Conv2d(width, 3 * width, 1)
        latitudes = torch.sin((torch.arange(nlat) + 0.5) * torch.pi / nlat)
        self.register_buffer("area", latitudes.log()[:, None].expand(nlat, nlon).flatten())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.flatten(2).mT for each in self.of_places(x).chunk(3, 1))
        p = self.drop if self.training else 0.0
        read = nn.functional.scaled_dot_product_attention(q, k, v, self.area[None, None], p)
        return read.mT.reshape(x.shape)


class AlwaysDropped(Sphere):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.flatten(2).mT for each in self.of_places(x).chunk(3, 1))
        return nn.functional.scaled_dot_product_attention(q, k, v, self.area[None, None], self.drop).mT.reshape(x.shape)


class OfRotations(Sphere):
    """The sides have other names."""

    def __init__(self, width: int, in_lat: int = 8, in_lon: int = 16) -> None:
        super().__init__(width, in_lat, in_lon)


@pytest.mark.parametrize("kind", [Sphere, OfRotations])
def test_a_map_of_a_sphere_has_latitudes_and_longitudes(kind: type[nn.Module]) -> None:
    height, width = first(kind, width=12).arguments["x"].shape[2:]
    assert height * width == 24
    assert check(kind, args={"width": 12}).verdict in RIGHT


def test_dropout_that_stays_on_is_found_on_a_sphere() -> None:
    assert {each.id for each in check(AlwaysDropped, args={"width": 12}).causes} == {"dropout-in-eval"}


def test_sides_are_told_by_a_pair_of_names_alone() -> None:
    assert side_names(["width", "n_lat", "n_lon"]) == ("n_lat", "n_lon")
    assert side_names(["dim", "h_s", "w_s"]) == ("h_s", "w_s")
    assert side_names(["h_size", "w_len"]) == ()
    assert side_names(["lat", "w"]) == ()
    assert side_names(["height", "w"]) == ()


class Inner(nn.Module):
    def __init__(self, causal: bool, attn_dropout: float) -> None:
        super().__init__()
        self.causal, self.drop = causal, attn_dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = self.drop if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=p)


class WithOptions(nn.Module):
    """What stands in the dict goes to the part that it is for."""

    def __init__(self, d_model: int, attn_kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.qkv, self.inner = nn.Linear(d_model, 3 * d_model), Inner(**attn_kwargs)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(*self.qkv(x).chunk(3, -1))


class WithConfig(nn.Module):
    """Of a config the user may give a part."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.qkv = nn.Linear(config["d_model"], 3 * config["d_model"])
        self.inner = Inner(config["causal"], config["attn_dropout"])

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(*self.qkv(x).chunk(3, -1))


def test_a_dict_of_options_is_handed_over_as_it_is() -> None:
    options = {"causal": True, "attn_dropout": 0.1}
    report = check(WithOptions, args={"d_model": 16, "attn_kwargs": options})
    assert report.verdict in RIGHT
    assert "causal" in str(report)


def test_a_part_of_a_config_is_completed() -> None:
    assert check(WithConfig, args={"config": {"causal": True}}).verdict in RIGHT


class Gathered(nn.Module):
    """Channels attend to the channels of centers, of which there are fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """What the channels read.

        x: features (N,C,H,W), y: gathering centers (N,K,H,W)
        """
        rows, centers = x.flatten(2), y.reshape(*y.shape[:2], -1)
        return x + self.share * ((rows @ centers.mT).softmax(-1) @ centers).view(x.shape)


def test_what_stands_before_the_sides_of_a_map_are_channels_by_whatever_name() -> None:
    call = first(Gathered)
    assert axes(call) == [("x", 0, (2, 3), None), ("context", 0, (2, 3), None)]
    assert check(Gathered).verdict in RIGHT
    for shape, letters in (("N,K,H,W", "bdyx"), ("B, heads, H, W", ""), ("B, T, H, W", "")):
        assert written_map(f'def read(y):\n    """Of y: ({shape})."""', "y") == letters
