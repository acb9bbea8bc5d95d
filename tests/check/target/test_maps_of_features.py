"""Calls of attention over the places of a map of features, whose height and width the constructor is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_calls import Packed, attention, axes, first
from torch import Tensor, nn

from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class OfASide(nn.Module):
    """The side of the map is told, and its square is the number of tokens."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        self.q, self.k, self.v = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, self.channels, self.size * self.size).swapaxes(1, 2)
        read = attention(self.q(x), self.k(x), self.v(x)) + x
        return read.swapaxes(2, 1).view(-1, self.channels, self.size, self.size)


def test_what_is_laid_out_by_a_square_is_a_map() -> None:
    for args in ({}, {"channels": 8, "size": 3}):
        call = first(OfASide, **args)
        assert axes(call) == [("x", 0, (2, 3), None)]
        assert call.arguments["x"].shape[2:] == (call.target.size, call.target.size)


class OfTwoSides(nn.Module):
    def __init__(self, n_dims: int, width: int = 14, height: int = 14) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(n_dims, n_dims, 1) for _ in range(3))
        self.rows = nn.Parameter(torch.randn(1, n_dims, width, 1))
        self.columns = nn.Parameter(torch.randn(1, n_dims, 1, height))

    def forward(self, x: Tensor) -> Tensor:
        n_batch, channels, width, height = x.size()
        places = (self.rows + self.columns).flatten(2).mT
        q, k, v = (each(x).flatten(2).mT for each in (self.q, self.k, self.v))
        weights = ((q @ k.mT + q @ places.mT) / channels**0.5).softmax(-1)
        return (weights @ v).mT.view(n_batch, channels, width, height)


def test_the_height_and_the_width_of_a_constructor_are_those_of_the_map() -> None:
    assert first(OfTwoSides).arguments["x"].shape[2:] == (4, 6)
    told = first(OfTwoSides, n_dims=8, width=3, height=5)
    assert told.arguments["x"].shape[1:] == (8, 3, 5)


class OfItsPlaces(nn.Module):
    """The tokens are the places of a map of a height and a width, which a convolution reads."""

    def __init__(self, d_model: int, H: int = 7, W: int = 7) -> None:
        super().__init__()
        self.H, self.W = H, W
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.reduced = nn.Conv2d(d_model, d_model, 2, 2, groups=d_model)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        x = self.reduced(queries.mT.reshape(len(queries), -1, self.H, self.W)).flatten(2).mT
        return attention(self.q(queries), self.k(x), self.v(x)) * (keys.shape[1] > 0)


def test_there_are_as_many_tokens_as_places() -> None:
    assert first(OfItsPlaces).arguments["queries"].shape[1] == 4 * 6
    assert first(OfItsPlaces, d_model=8, H=2, W=4).arguments["queries"].shape[1:] == (8, 8)


class OfDistances(nn.Module):
    """Learned numbers of the distances of rows and of columns are added to the scores of a map of one size."""

    def __init__(self, d_model: int, shape: int = 5) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(d_model, 3 * d_model, 1)
        self.key_rel_h, self.key_rel_w = (nn.Parameter(torch.randn(2 * shape - 1, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).flatten(2).mT.chunk(3, -1)
        place, far = torch.arange(x.shape[2]), len(self.key_rel_h) // 2
        rows, columns = (each[place - place[:, None] + far, 0] for each in (self.key_rel_h, self.key_rel_w))
        bias = (rows[:, None, :, None] + columns[:, None]).reshape(q.shape[1], k.shape[1])
        return ((q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v).mT.view_as(x)


@pytest.mark.parametrize("side", [5, 3])
def test_the_sides_of_a_map_are_told_by_tables_of_distances(side: int) -> None:
    assert first(OfDistances, shape=side).arguments["x"].shape[2:] == (side, side)


class Shown(nn.Module):
    """Its config has a config in it, and it is told whether its weights are returned."""

    def __init__(self, config: Any, vis: Any) -> None:
        super().__init__()
        self.vis, self.heads = vis, config.transformer["num_heads"]
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2), weights if self.vis else None


class WithAShown(nn.Module):
    def __init__(self, config: Any, vis: Any) -> None:
        super().__init__()
        self.attention = Shown(config, vis)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        read: tuple[Tensor, Tensor | None] = self.attention(x)
        return read


def test_a_config_may_stand_in_a_config_and_a_flag_may_be_handed_on() -> None:
    for kind in (Shown, WithAShown):
        said = first(kind).assumptions
        assert "vis=False" in said
        assert any(each.startswith("config.transformer.num_heads=") for each in said)


class OfColumns(nn.Module):
    """Each place attends to those of its column; the samples stand behind the rows and columns."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v = (nn.Linear(embed_dim, embed_dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        rows, columns, batch_size, embed_dim = x.size()
        q, k, v = (each(x).view(rows, columns, batch_size, self.num_heads, -1) for each in (self.q, self.k, self.v))
        weights = (torch.einsum("icnhd,jcnhd->hcnij", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("hcnij,jcnhd->icnhd", weights, v).reshape(rows, columns, batch_size, embed_dim)


class OfSamples(OfColumns):
    def forward(self, x: Tensor) -> Tensor:
        batch_size, rows, columns, embed_dim = x.size()
        return super().forward(x).view(batch_size, rows, columns, embed_dim)


def test_rows_and_columns_may_stand_before_the_samples() -> None:
    call = first(OfColumns)
    assert axes(call) == [("x", 2, (0, 1), None)]
    assert analyze(call).violations == []
    assert {each.property for each in analyze(first(OfSamples)).violations} == {"samples-apart"}


class OfPatches(nn.Module):
    """A picture is cut into 3 x 3 patches of 4 x 4; these and a class token have their places in a table."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, width, 4, stride=4), nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 10, width))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).mT
        x = torch.cat((self.first.expand(len(x), -1, -1), patches), 1) + self.positions
        return attention(x, x, x)


def test_a_picture_has_as_many_patches_as_its_table_has_places() -> None:
    assert first(OfPatches).arguments["x"].shape[1:] == (3, 12, 12)


class CutByAnEmbedding(nn.Module):
    """Of pictures of 12 x 12: the table of their places has another width than what cuts them, and is not its own."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.cut, self.embed = nn.Conv2d(3, 2 * embed_dim, 4, stride=4), nn.Linear(2 * embed_dim, embed_dim)
        self.class_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.positions = nn.Parameter(torch.zeros(10, embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(self.cut(x).flatten(2).mT)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions


class OfPictures(nn.Module):
    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.embed, self.attention = CutByAnEmbedding(embed_dim), Packed(embed_dim, 3)

    def forward(self, img: Tensor) -> Tensor:
        return self.attention(self.embed(img))[:, 0]


def test_the_side_of_a_picture_is_told_by_the_table_of_its_places() -> None:
    assert first(OfPictures).arguments["img"].shape[1:] == (3, 12, 12)
    assert analyze(first(OfPictures)).violations == []


class OfPicturesOfASide(nn.Module):
    """Its places are given by the constructor's size of pictures alone."""

    def __init__(self, embed_dim: int, num_channels: int, image_size: int, patch_size: int) -> None:
        super().__init__()
        self.side, self.embed = patch_size, nn.Linear(num_channels * patch_size**2, embed_dim)
        self.attention = Packed(embed_dim, 3)
        self.table = nn.Embedding((image_size // patch_size) ** 2, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(3, (-1, self.side)).unflatten(2, (-1, self.side)).permute(0, 2, 4, 1, 3, 5)
        x = self.embed(x.flatten(3).flatten(1, 2))
        return self.attention(x + self.table(torch.arange(self.table.num_embeddings)))


def test_the_side_of_a_picture_is_what_the_user_says() -> None:
    call = first(OfPicturesOfASide, num_channels=3, image_size=20, patch_size=4)
    assert call.arguments["x"].shape[2:] == (20, 20)


class OfNamedAxes(nn.Module):
    """Windows of two rows and all columns, of places whose channels are named last."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        B, above, along, C = x.shape  # the channels are last
        q, k, v = self.qkv(x.view(B * above // 2, 2 * along, C)).chunk(3, -1)
        return attention(q, k, v).view(B, above, along, C)


def test_channels_that_are_named_last_are_last() -> None:
    assert axes(first(OfNamedAxes)) == [("x", 0, (1, 2), None)]
    assert axes(first(OfNamedAxes, dim=6)) == [("x", 0, (1, 2), None)]


class OfFlatWindows(nn.Module):
    """Places in a row, of a map whose sides are handed over and which is cut into windows."""

    def __init__(self, dim: int, window_size: int) -> None:
        super().__init__()
        self.window_size, self.qkv = window_size, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, map_shape: tuple[int, int]) -> Tensor:
        height, width = map_shape
        n_batch, n_places, dim = x.shape
        assert height * width == n_places
        side = self.window_size
        windows = self.qkv(x).view(n_batch, height // side, side, width // side, side, 3 * dim)
        q, k, v = windows.transpose(2, 3).flatten(3, 4).chunk(3, -1)
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return read.unflatten(3, (side, side)).transpose(2, 3).reshape(x.shape)


def test_the_sides_of_places_in_a_row_are_those_of_whole_windows() -> None:
    call = first(OfFlatWindows, dim=8, window_size=4)
    rows, columns = call.arguments["map_shape"]
    assert rows % 4 == columns % 4 == 0
    assert call.arguments["x"].shape[1] == rows * columns


def rearrange(x: Tensor, order: str, *, b: int, h: int, w: int, t: int) -> Tensor:
    """What the function of einops does, of the orders below."""
    parts = x.reshape(b, h, w, t, -1)
    if order.endswith("-> (b h w) t d"):
        return parts.flatten(0, 2)
    return (parts if order.endswith("(h w t) d") else parts.movedim(3, 1)).flatten(1, 3)


class OfFrames(nn.Module):
    """A token of the class, and the places of several frames, each of which attends to itself at other times."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, B: int, T: int, W: int) -> Tensor:
        H = (x.shape[1] - 1) // T // W
        over_time = rearrange(x[:, 1:], "b (h w t) d -> (b h w) t d", b=B, h=H, w=W, t=T)
        read = rearrange(attention(*self.qkv(over_time).chunk(3, -1)), "(b h w) t d -> b (h w t) d", b=B, h=H, w=W, t=T)
        return torch.cat([x[:, :1], x[:, 1:] + read], 1)


class OfFramesInAnotherOrder(OfFrames):
    def forward(self, x: Tensor, B: int, T: int, W: int) -> Tensor:
        H = (x.shape[1] - 1) // T // W
        over_time = rearrange(x[:, 1:], "b (h w t) d -> (b h w) t d", b=B, h=H, w=W, t=T)
        read = rearrange(attention(*self.qkv(over_time).chunk(3, -1)), "(b h w) t d -> b (t h w) d", b=B, h=H, w=W, t=T)
        return torch.cat([x[:, :1], x[:, 1:] + read], 1)


def test_numbers_that_einops_is_told_beside_the_sides_of_a_map_are_those_of_its_frames() -> None:
    call = first(OfFrames)
    told = [call.arguments[each] for each in ("B", "T", "W")]
    assert told[0] == call.arguments["x"].shape[0]
    assert (call.arguments["x"].shape[1] - 1) % (told[1] * told[2]) == 0
    assert analyze(call).violations == []
    assert [each.property for each in analyze(first(OfFramesInAnotherOrder)).violations] == ["output-of-the-token"]


class OfPlacesInARow(nn.Module):
    """Attends within rows of a map that it is handed as a row of places."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, x_size: tuple[int, int]) -> Tensor:
        H, W = x_size
        q, k, v = self.qkv(x.view(len(x), H, W, -1)).chunk(3, -1)
        return attention(q, k, v).flatten(1, 2)


class OfItsLayers(nn.Module):
    """Hands height and width on to its layers."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([OfPlacesInARow(dim) for _ in range(depth)])

    def forward(self, x: Tensor, x_size: tuple[int, int]) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x_size)
        return x


def test_what_a_layer_takes_apart_into_height_and_width_is_both_for_its_stack() -> None:
    call = first(OfItsLayers, dim=12, depth=2)
    height, width = call.arguments["x_size"]
    assert call.arguments["x"].shape == (2, height * width, 12)
    assert not analyze(call).violations


class OfASideThatIsNotKept(nn.Module):
    """A bias for each two tokens: a class token, and the places of a map whose sides the call is told as well."""

    def __init__(self, dim: int, feat_size: tuple[int, int], num_heads: int = 2, beside: int = 1) -> None:
        super().__init__()
        count = feat_size[0] * feat_size[1] + beside
        self.beside, self.inner = beside, Packed(dim, num_heads)
        self.bias = nn.Parameter(torch.randn(count, dim))

    def forward(self, x: Tensor, feat_size: list[int]) -> Tensor:
        height, width = feat_size
        places = x[:, self.beside :].unflatten(1, (height, width)).flatten(1, 2)
        return self.inner(torch.cat([x[:, : self.beside], places], 1) + self.bias)


def test_sides_that_a_constructor_is_told_and_does_not_keep_are_those_of_the_call() -> None:
    for beside in (0, 1):
        call = first(OfASideThatIsNotKept, beside=beside)
        assert call.arguments["feat_size"] == (3, 3)
        assert call.arguments["x"].shape[1] == 9 + beside


class PooledPlaces(nn.Module):
    """The mean of all places asks them (CLIP's attention pool), each with a vector of its own; nothing cuts the map."""

    def __init__(self, side: int, channels: int = 8) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(side**2 + 1, channels))
        self.q, self.k, self.v = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], x.shape[1], x.shape[2] * x.shape[3]).mT
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.positions
        return attention(self.q(x[:, :1]), self.k(x), self.v(x))[:, 0]


@pytest.mark.parametrize("side", [3, 8])
def test_the_side_of_a_map_that_nothing_cuts_is_told_by_the_table_of_its_places(side: int) -> None:
    call = first(PooledPlaces, side=side)
    assert call.arguments["x"].shape[2:] == (side, side)
    assert not analyze(call).missing


class OfHeadsTogether(nn.Module):
    """What is named as the width of a head's keys, and of its values, is that of all heads: it is divided by them."""

    def __init__(self, channels: int = 16, dk: int = 16, dv: int = 16, Nh: int = 4) -> None:
        super().__init__()
        self.dk, self.dv, self.Nh = dk, dv, Nh
        self.qkv, self.out = nn.Conv2d(channels, 2 * dk + dv, 1), nn.Conv2d(dv, dv, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(1, (self.Nh, -1)).flatten(3).mT
            for each in self.qkv(x).split([self.dk // self.Nh * self.Nh, self.dk, self.dv], 1)
        )
        assert self.dv % self.Nh == 0
        return self.out(self.joined(attention(q, k, v)).reshape(len(x), self.dv, *x.shape[2:]))

    def joined(self, read: Tensor) -> Tensor:
        return read.mT


class JoinedInAnotherOrder(OfHeadsTogether):
    def joined(self, read: Tensor) -> Tensor:
        return read


def test_a_width_that_is_divided_by_the_heads_is_that_of_all_of_them() -> None:
    call = first(OfHeadsTogether)
    assert call.target.dv // call.target.Nh > 1  # else heads that are joined in any order are the same
    assert not analyze(call).violations
    assert analyze(first(JoinedInAnotherOrder)).violations
