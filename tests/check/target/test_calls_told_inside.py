"""Calls whose arguments are told by what the code, and the parts that it hands them on to, do with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from einops import rearrange
from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check.properties.analyze import analyze


class BesideItsSides(nn.Module):
    """The tokens of a map behind one of its class; its sides are handed over."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.near = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, h: int, w: int) -> Tensor:
        token, places = x.split([1, h * w], 1)
        places = self.near(places.mT.unflatten(-1, (h, w))).flatten(2).mT
        x = torch.cat((token, places), 1)
        return attention(self.q(x), self.k(x), x)


def test_one_token_may_stand_before_those_of_a_map() -> None:
    call = first(BesideItsSides)
    assert call.arguments["x"].shape[1] == 1 + call.arguments["h"] * call.arguments["w"]


class OfFourteenRows(nn.Module):
    """Keys are made of 2 x 2 places of a map, which has 14 x 14 if nothing else is said."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.reduced = nn.Conv2d(dim, dim, 2, 2)
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, H: int = 14, W: int = 14) -> Tensor:
        keys = self.reduced(x.mT.unflatten(-1, (H, W))).flatten(2).mT
        return attention(self.q(x), self.k(keys), keys)


def test_the_sides_of_a_map_are_told_where_they_have_defaults() -> None:
    call = first(OfFourteenRows)
    assert call.arguments["x"].shape[1] == call.arguments["H"] * call.arguments["W"] < 100


class OfSounds(nn.Module):
    """Convolutions over time, whose channels stand first."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv1d(channels, channels, 1) for _ in range(3))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return attention(self.q(x).mT, self.k(c).mT, self.v(c).mT).mT


def test_as_many_tokens_as_channels_are_tried_last_before_a_convolution() -> None:
    call = first(OfSounds, channels=64)
    assert call.arguments["x"].shape[:2] == (2, 64)
    assert call.arguments["x"].shape[2] < 64
    assert call.streams[0].token_axes == (2,)


class PooledPairs(nn.Module):
    """Pairs of places, each pooled by scores that a matrix makes of the channels in front of them (Enformer)."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.eye(dim))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("bdn,de->ben", x, self.scores).unflatten(-1, (-1, 2))
        return (x.unflatten(-1, (-1, 2)) * scores.softmax(-1)).sum(-1)


def test_as_many_tokens_as_channels_are_tried_last_before_an_einsum() -> None:
    call = first(PooledPairs, dim=16)
    assert call.arguments["x"].shape[1] == 16 != call.arguments["x"].shape[2]
    assert call.streams[0].token_axes == (2,)


def turned(vectors: Tensor, table: Tensor) -> Tensor:
    pairs = vectors.unflatten(-1, (-1, 1, 2))
    return (table[..., 0] * pairs[..., 0] + table[..., 1] * pairs[..., 1]).flatten(-2)


class OfTwoKinds(nn.Module):
    """Places of a picture and words, which attend as one sequence, each turned by its place in both."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.before, self.of_words = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, img: Tensor, txt: Tensor, pe: Tensor) -> Tensor:
        both = torch.cat((self.of_words(txt), self.before(img)), dim=1)
        return attention(turned(self.q(both), pe), turned(self.k(both), pe), both)


def test_tables_of_two_joined_sequences_have_places_for_both() -> None:
    call = first(OfTwoKinds)
    assert [each.role for each in call.streams] == ["x", "context"]
    assert 12 in call.arguments["pe"].shape


class Inner(nn.Module):
    """Words read the parts of the pictures that came before them."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.kv = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, words: Tensor, pictures: Tensor, places: Tensor | None = None) -> Tensor:
        assert places.shape == words.shape[:2]
        parts = pictures.shape[2]
        kv = self.kv(rearrange(pictures, "b p n d -> b (p n) d"))
        q, k, v = (rearrange(each, "b n (h d) -> b h n d", h=self.heads) for each in (self.q(words), *kv.chunk(2, -1)))
        count = torch.arange(pictures.shape[1]).repeat_interleave(parts) + 1
        hidden = places.cumsum(-1)[:, None, :, None] < count
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -1e30)
        return rearrange(scores.softmax(-1) @ v, "b h n d -> b n (h d)")


class Outer(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.inner = Inner(dim, heads)

    def forward(self, x: Tensor, media: Tensor, marked: Tensor | None = None) -> Tensor:
        return x + self.inner(x, media, places=marked)


def test_what_a_part_takes_apart_and_counts_is_handed_over() -> None:
    call = first(Outer)
    assert axes(call) == [("x", 0, (1,), None), ("context", 0, (1, 2), None)]
    assert call.arguments["marked"].dtype == torch.bool
    assert not call.by_errors


class OfFrames(nn.Module):
    """Latents of each frame read the tokens of that frame, and themselves."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        """
        Args:
            x: (b, T, n, D)
            latents: (b, T, m, D)
        """
        samples, frames, _, width = x.shape
        k, v = self.kv(torch.cat((x, latents), -2)).chunk(2, -1)
        return attention(self.q(latents), k, v).view(samples, frames, -1, width)


def test_an_axis_of_several_sequences_that_stays_apart_has_one_slice() -> None:
    call = first(OfFrames)
    assert [tuple(call.arguments[name].shape) for name in ("x", "latents")] == [(2, 1, 5, 12), (2, 1, 7, 12)]
    assert not analyze(call).missing


class OfSeries(nn.Module):
    """Each series is a token; nothing reads what a decoder would."""

    def __init__(self, seq_len: int = 24, dim: int = 32) -> None:
        super().__init__()
        self.embed, self.q = nn.Linear(seq_len, dim), nn.Linear(dim, dim)

    def forward(self, x_enc: Tensor, x_mark_enc: Any, x_dec: Tensor, x_mark_dec: Any, mask: Any = None) -> Tensor:
        series = self.embed(x_enc.permute(0, 2, 1))
        return attention(self.q(series), series, series)


def test_series_may_be_the_tokens() -> None:
    call = first(OfSeries, seq_len=24)
    assert axes(call) == [("x", 0, (2,), None)]
    assert call.arguments["x_enc"].shape[1] == 24
    assert call.masks == []


class OfLearnedQueries(nn.Module):
    """Queries and positions without samples."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, src: Tensor, query_embed: Tensor, pos_embed: Tensor) -> Tensor:
        asked = query_embed.unsqueeze(0).repeat(len(src), 1, 1)
        places = pos_embed.unsqueeze(0).repeat(len(src), 1, 1)
        return attention(self.q(asked), self.k(src + places), src)


def test_vectors_that_the_code_repeats_have_no_samples() -> None:
    call = first(OfLearnedQueries, dim=32)
    assert call.arguments["query_embed"].shape == (7, 32)
    assert call.arguments["pos_embed"].shape == (5, 32)


class Pair(NamedTuple):
    asking: Tensor
    asked: Tensor


@dataclass
class Padded:
    tokens: Tensor
    padding_mask: Tensor


class OfPair(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, both: Pair) -> Tensor:
        return attention(self.q(both.asking), self.k(both.asked), both.asked)


class OfPadded(OfPair):
    def forward(self, batch: Padded) -> Tensor:  # type: ignore[override]
        x = batch.tokens
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return scores.masked_fill(batch.padding_mask[:, None], -torch.inf).softmax(-1) @ x


class OfLayers(nn.Module):
    """Each layer reads a memory of its own."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))

    def forward(self, x: Tensor, memories: list[Tensor]) -> Tensor:
        for layer, memory in zip(self.layers, memories, strict=True):
            x = x + attention(x, layer(memory), memory)
        return x


def spun(vectors: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = table
    a, b = vectors.chunk(2, -1)
    return vectors * cos + torch.cat((-b, a), -1) * sin


class OfHeads(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        """x: (B, N, C); near: (heads, N, N)"""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT / q.shape[-1] ** 0.5 + near[None]).softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfPlaces(OfHeads):
    def forward(self, x: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return attention(spun(q, places), spun(k, places), v).transpose(1, 2).flatten(2)


class OfDict(OfPair):
    def forward(self, sample: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        x = sample["features"]
        mask = sample["attention_mask"]
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return scores.masked_fill(mask[:, None, :] == 0, -torch.inf).softmax(-1) @ x


@pytest.mark.parametrize(
    ("target", "shapes"),
    [
        (OfPair, {"both.asking": (2, 5, 32), "both.asked": (2, 7, 32)}),
        (OfPadded, {"batch.tokens": (2, 5, 32), "batch.padding_mask": (2, 5)}),
        (OfLayers, {"x": (2, 5, 32), "memories[0]": (2, 7, 32), "memories[1]": (2, 7, 32)}),
        (OfPlaces, {"x": (2, 5, 32), "places": 2}),
        (OfHeads, {"x": (2, 5, 32), "near": (4, 5, 5)}),
        (OfDict, {"sample.features": (2, 5, 32), "sample.attention_mask": (2, 5)}),
    ],
)
def test_several_tensors_may_be_one_argument(target: type[nn.Module], shapes: dict[str, Any]) -> None:
    call = first(target, dim=32)
    assert not call.by_errors
    found = {name: call.arguments[name] for name in shapes}
    assert {name: len(each) if isinstance(each, tuple) else tuple(each.shape) for name, each in found.items()} == shapes


class ReadsBefore(nn.Module):
    """Attends to the tokens before as well, and cannot do without any."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        both = torch.cat([memory, x], 1)
        weights = self.q(x) @ self.k(both).mT / x.shape[-1] ** 0.5
        assert weights.shape[-1] == memory.shape[1] + x.shape[1]
        return weights.softmax(-1) @ self.v(both)


class HandsMemoryOn(nn.Module):
    """Its signature says that it can do without, and nothing asks."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.inner, self.norm = ReadsBefore(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor, mems: Any = None) -> Tensor:
        return x + self.inner(self.norm(x), mems)


class AsksForMemory(HandsMemoryOn):
    def forward(self, x: Tensor, mems: Any = None) -> Tensor:
        if mems is None:
            mems = x[:, :0]
        return x + self.inner(self.norm(x), mems)


@pytest.mark.parametrize(("kind", "given"), [(HandsMemoryOn, {"x", "mems"}), (AsksForMemory, {"x"})])
def test_a_memory_that_a_part_cannot_do_without_is_handed_over(kind: type[nn.Module], given: set[str]) -> None:
    call = first(kind)
    assert call.arguments.keys() == given
    assert {each.role for each in call.streams} == {"x", "context"} if len(given) > 1 else {"x"}
