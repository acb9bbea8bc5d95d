"""Packed sequences, graphs, maps of features and tables of distances are called in the layouts that they take."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.check.conclusion import analyses_of, conclude
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import Invocation, invocations


def first(target: Any, **args: Any) -> Invocation:
    return next(invocations(target, args=args))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def test_packed_sequences_have_no_batch_and_boundaries_of_one_sequence():
    def packed(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        assert max_seqlen == len(q)
        return attention(*(each.transpose(0, 1) for each in (q, k, v))).transpose(0, 1)

    call = first(packed)
    assert [(each.batch_axis, each.token_axes, each.head_axis) for each in call.streams] == [(None, (0,), 1)] * 3
    assert (call.arguments["cu_seqlens"].tolist(), call.boundaries) == ([0, 5], ["cu_seqlens"])


def test_all_heads_of_queries_may_share_keys_and_values_without_an_axis_of_heads():
    def of_many_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (torch.einsum("bhid,bjd->bhij", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
        return torch.einsum("bhij,bjd->bhid", weights, v)

    call = first(of_many_queries)
    assert [call.arguments[name].ndim for name in "qkv"] == [4, 3, 3]
    assert conclude(of_many_queries, {}, UserSettings()).report().verdict == "right"


def test_the_edges_of_a_graph_are_a_mask():
    def along_edges(x: Tensor, adj: Tensor) -> Tensor:
        return (x @ x.mT).masked_fill(adj == 0, -torch.inf).softmax(-1) @ x

    assert first(along_edges).masks == ["adj"]


class OfWindows(nn.Module):
    """A map of features is cut into windows of three by three tokens."""

    def __init__(self, dim: int = 8, window_size: int = 3, resolution: int | None = None) -> None:
        super().__init__()
        self.side, self.resolution, self.project = window_size, resolution, nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, _ = x.shape
        assert self.resolution in (None, height)
        cut = x.unflatten(1, (-1, self.side)).unflatten(3, (-1, self.side)).transpose(2, 3)
        windows = self.project(cut.flatten(3, 4).flatten(1, 2))
        attended = attention(windows, windows, windows).unflatten(2, (self.side, self.side))
        grid = attended.unflatten(1, (height // self.side, width // self.side))
        return grid.transpose(2, 3).reshape(batch, height, width, -1)


@pytest.mark.parametrize(("args", "sides"), [({}, (6, 9)), ({"resolution": 6}, (6, 6))])
def test_maps_of_features_are_as_large_as_a_constructor_says_and_whole_windows(args, sides):
    assert first(OfWindows, **args).arguments["x"].shape[1:3] == sides


def test_a_table_of_distances_is_handed_over_where_no_other_table_of_positions_fits():
    def relative(x: Tensor, pos_enc: Tensor) -> Tensor:
        tokens = x.shape[1]
        distances = torch.arange(tokens)[:, None] - torch.arange(tokens) + tokens - 1
        logits = (x @ pos_enc.view(1, 2 * tokens - 1, -1).mT).gather(-1, distances.expand(len(x), -1, -1))
        return (x @ x.mT + logits).softmax(-1) @ x

    assert first(relative).arguments["pos_enc"].shape == (1, 9, 12)


# Layouts in which what is called another way first, and is wrong so, is right. ----------------------------------------


class FromTokensFirst(nn.Module):
    """Its axes are (tokens, batch, width): of both sequences."""

    equation = "tbd,sbd->bts", "bts,sbd->tbd"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        of_scores, of_sums = self.equation
        scores = torch.einsum(of_scores, self.q(x), self.k(memory)) / math.sqrt(x.shape[-1])
        return torch.einsum(of_sums, self.weights(scores), memory)

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


def of_one_state(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """A vector of each sample asks keys and values (tokens, batch, width)."""
    scores = (query[None] * keys).sum(-1) / math.sqrt(query.shape[-1])
    return (scores.softmax(0)[..., None] * values).sum(0)


@pytest.mark.parametrize(
    ("kind", "axes"),
    [(FromTokensFirst, [(1, (0,)), (1, (0,))]), (of_one_state, [(0, ()), (1, (0,)), (1, (0,))])],
)
def test_the_layout_is_meant_in_which_nothing_is_wrong(kind: Any, axes: list[Any]) -> None:
    analyses, _ = analyses_of(kind, {}, {}, UserSettings())
    assert [(each.batch_axis, each.token_axes) for each in analyses[0].invocation.streams] == axes
    assert not any(each.violations for each in analyses)


def test_a_recipe_s_mistake_in_a_layout_that_is_not_meant_is_none() -> None:
    report = conclude(of_one_state, {}, UserSettings()).report()
    assert report.ok, str(report)
    assert "it is called with query (batch, width), keys (tokens, batch, width)" in report.notes[0]


class WithAMaskForEachHead(nn.Module):
    """Its axes are (tokens, batch, width); its mask is written for each head of each sample."""

    def __init__(self, dim: int, heads: int, is_tiled: bool = False) -> None:
        super().__init__()
        self.read, self.heads, self.is_tiled = nn.MultiheadAttention(dim, heads), heads, is_tiled

    def forward(self, x: Tensor, memory: Tensor, memory_padding: Tensor | None = None) -> Tensor:
        if memory_padding is None:
            return x + self.read(x, memory, memory)[0]
        hidden = memory_padding[:, None].expand(-1, len(x), -1)
        several = hidden.repeat(self.heads, 1, 1) if self.is_tiled else hidden.repeat_interleave(self.heads, 0)
        return x + self.read(x, memory, memory, attn_mask=several)[0]


@pytest.mark.parametrize("is_tiled", [False, True])
def test_masks_are_judged_in_the_layout_in_which_all_else_is_right(is_tiled: bool) -> None:
    report = conclude(WithAMaskForEachHead, {"is_tiled": is_tiled}, UserSettings()).report()
    assert report.ok != is_tiled, str(report)
    assert [each.id for each in report.causes] == ["mask-argument"] * is_tiled


class FromSamples(FromTokensFirst):
    """Its names say that the batch comes first, and it is mixed."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        return super().forward(x, memory).reshape(batch, tokens, width)


class FromSamplesByAComment(FromTokensFirst):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        # both are (batch, tokens, width)
        return super().forward(x, memory)


class OverQueries(FromTokensFirst):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


class ValuesOfOtherSamples(FromTokensFirst):
    equation = "tbd,sbd->bts", "bts,scd->tbd"


def with_softmax_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-2) @ v


class MergedByAView(nn.Module):
    """Heads are joined without a transpose, which is right of one query alone."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.k, self.v = heads, nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        inputs = ((self.q, query), (self.k, key), (self.v, value))
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer, x in inputs)
        return self.merged(attention(q, k, v)).reshape(query.shape)

    def merged(self, heads: Tensor) -> Tensor:
        return heads


class MergedByAnotherView(MergedByAView):
    """It is right, but for the order of the channels, of two queries: no other layout is called by which that is so."""

    def merged(self, heads: Tensor) -> Tensor:
        return heads.reshape(*heads.shape[:2], heads.shape[3], heads.shape[2]).transpose(1, 2)


WRONG = [
    FromSamples,
    FromSamplesByAComment,
    OverQueries,
    ValuesOfOtherSamples,
    with_softmax_over_queries,
    MergedByAView,
    MergedByAnotherView,
]


@pytest.mark.parametrize("kind", WRONG)
def test_no_layout_excuses_what_is_wrong_in_each_or_in_the_one_that_is_named(kind: Any) -> None:
    analyses, _ = analyses_of(kind, {}, {}, UserSettings())
    assert any(each.violations for each in analyses)


def across_samples(query: Tensor, key: Tensor, places: Tensor) -> Tensor:
    """Nothing tells how many samples there are: it runs only where one sequence has one."""
    if len(query) != 1 or len(key) < 2:
        raise ValueError
    return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ key


def test_sequences_of_different_numbers_of_samples_are_not_judged():
    report = conclude(across_samples, {}, UserSettings()).report()
    assert report.verdict == "undetermined", str(report)


class OverLayers(nn.Module):
    """Weights of the outputs of several layers (layers, batch, tokens, channels), by channel."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.score = nn.Linear(dim, dim)

    def forward(self, outputs: Tensor) -> Tensor:
        batch, count, _ = outputs.shape[1:]  # four axes, of which the first is not the samples
        layers = outputs.permute(1, 2, 0, 3)
        return (self.score(layers).softmax(2) * layers).sum(2).reshape(batch, count, -1)


def test_an_output_without_an_axis_of_the_samples_accuses_nobody_of_mixing_them():
    report = conclude(OverLayers, {}, UserSettings()).report()
    assert report.verdict != "wrong"
