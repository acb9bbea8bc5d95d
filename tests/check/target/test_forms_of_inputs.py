"""Inputs in other forms than a sequence each: pairs, videos, names with suffixes, tables, caches that are set up."""

from __future__ import annotations

import pytest
import torch
from target_calls import Packed, attention, axes, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def wrong_in(call: Invocation) -> set[str]:
    """The properties that it violates."""
    return {each.property for each in analyze(call).findings if each.kind == "violation"}


class OfAPair(nn.Module):
    """Both sequences come as one tuple."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        assert isinstance(inputs, tuple)
        assert len(inputs) == 2
        query_antecedent, memory_antecedent = inputs
        return attention(self.q(query_antecedent), *self.kv(memory_antecedent).chunk(2, -1))


def test_a_tuple_is_taken_apart_by_the_first_words_of_its_names() -> None:
    call = first(OfAPair)
    assert [each.role for each in call.streams] == ["x", "context"]
    assert not wrong_in(call)


class OfAVideo(nn.Module):
    """The places of a frame attend to each other: (b, c, t, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.q, self.k, self.v = (nn.Conv3d(channels, channels, 1) for _ in range(3))

    def frames(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1).flatten(2).mT

    def forward(self, x: Tensor) -> Tensor:
        b, c, t, h, w = x.shape
        y = self.norm(x)
        read = attention(self.frames(self.q(y)), self.frames(self.k(y)), self.frames(self.v(y)))
        return x + read.mT.reshape(b, t, c, h, w).transpose(1, 2)


class OfMixedFrames(OfAVideo):
    def frames(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0] * x.shape[2], x.shape[1], -1).mT  # channels and frames are mixed


@pytest.mark.parametrize(("kind", "is_wrong"), [(OfAVideo, False), (OfMixedFrames, True)])
def test_a_video_is_judged(kind: type, is_wrong: bool) -> None:
    call = first(kind, channels=8)
    assert axes(call) == [("x", 0, (2, 3, 4), None)]
    assert bool(wrong_in(call)) == is_wrong


class OfASuffix(Packed):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return super().forward(x_BTD)


def test_a_name_may_end_in_the_letters_of_its_axes() -> None:
    assert axes(first(OfASuffix)) == [("x", 0, (1,), None)]


class OfCounts(Packed):
    """How many tokens each sample has, by a name that says nothing."""

    def forward(self, x: Tensor, n_wins: Tensor) -> Tensor:
        shown = torch.arange(x.shape[1])[None, :] < n_wins[:, None]
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~shown[:, None, None], -torch.inf)
        return joined(scores.softmax(-1) @ v)


def test_what_places_are_compared_with_counts_tokens() -> None:
    assert first(OfCounts, width=8, heads=2).lengths == ["n_wins"]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)


def of_tokens_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return turned(x, cos[:, None, :], sin[:, None, :])


class OfASpreadPair(Packed):
    def forward(self, x: Tensor, rel_pos: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = (of_tokens_first(each, *rel_pos) for each in (q, k))
        return joined(attention(*(each.transpose(1, 2) for each in (q, k, v))))


class OfSinesAndCosines(Packed):
    """timm's: one table."""

    def forward(self, x: Tensor, query_rope: Tensor) -> Tensor:
        # query_rope: (batch, num_tokens, 2 * head_dim)
        sin, cos = (
            query_rope[..., : query_rope.shape[-1] // 4],
            query_rope[..., query_rope.shape[-1] // 2 :].chunk(2, -1)[0],
        )
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(attention(turned(q, cos[:, None], sin[:, None]), turned(k, cos[:, None], sin[:, None]), v))


class OfMatrices(Packed):
    """FLUX's: a matrix for each angle, and a vector of each sample."""

    def forward(self, x: Tensor, vec: Tensor, pe: Tensor) -> Tensor:
        q, k, v = map(split, (self.qkv(x) * (1 + vec.mean(-1)[:, None, None])).chunk(3, -1))
        q, k = ((pe @ each.unflatten(-1, (-1, 2, 1))).flatten(-3) for each in (q, k))
        return joined(attention(q, k, v))


@pytest.mark.parametrize("kind", [OfASpreadPair, OfSinesAndCosines, OfMatrices])
def test_rotary_tables_have_many_forms(kind: type) -> None:
    call = first(kind, width=16, heads=2)
    found = analyze(call)
    assert not wrong_in(call)
    assert "rotary" in " ".join(each.message for each in found.designs)


class SetUpFirst(nn.Module):
    """Nothing runs before the caches are there."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.keys, self.kept = nn.Linear(dim, 3 * dim), None, None

    def setup_caches(self, max_batch_size: int, max_seq_length: int) -> None:
        self.keys, self.kept = (
            torch.zeros(max_batch_size, max_seq_length, self.qkv.in_features).double() for _ in range(2)
        )

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        assert self.keys is not None, "Caches must be initialized first"
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys[:, input_pos], self.kept[:, input_pos] = k, v
        seen = torch.arange(self.keys.shape[1]) <= input_pos[:, None]
        scores = (q @ self.keys.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ self.kept


def test_caches_are_set_up_where_nothing_runs_without() -> None:
    call = first(SetUpFirst)
    assert "its caches were set up before the call" in call.assumptions
    assert call.arguments["input_pos"].shape == (5,)


def of_grouped_heads(query: Tensor, key: Tensor, value: Tensor, n_heads: int, kv_n_heads: int) -> Tensor:
    q, k, v = split(query, n_heads), split(key, kv_n_heads), split(value, kv_n_heads)
    k, v = (each.repeat_interleave(n_heads // kv_n_heads, 1) for each in (k, v))
    return joined(attention(q, k, v))


def test_keys_are_as_wide_as_their_heads() -> None:
    call = first(of_grouped_heads, n_heads=4, kv_n_heads=2)
    assert call.arguments["query"].shape[-1] == 2 * call.arguments["key"].shape[-1]
