"""Keys of a window that are gathered by clamped places: the first key stands several times in a row, and is hidden."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from attention_styles import tokens_call
from property_cases import drawn, joined, of_x, split
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Stream
from regard.check.target.preparation import prepare

WINDOW = 3


def gathered(x: Tensor, heads: int, softmax_axis: int = -1, *, hides: bool = True) -> Tensor:
    """A query sees the last `WINDOW` tokens."""
    q, k, v = (split(x @ drawn(8, 8, seed=seed), heads) for seed in range(3))
    places = torch.arange(x.shape[1])[:, None] - torch.arange(WINDOW)
    k, v = (each[:, :, places.clamp(min=0)] for each in (k, v))  # (batch, heads, tokens, window, channels)
    scores = (q[..., None, :] * k).sum(-1) / (8 / heads) ** 0.5
    if hides:
        scores = scores.masked_fill(places < 0, -torch.inf)
    weights = scores.softmax(softmax_axis)
    return joined((weights[..., None] * v).sum(-2))


def analyzed(heads: int, softmax_axis: int = -1, *, hides: bool = True) -> Analysis:
    return analyze(of_x(lambda x: gathered(x, heads, softmax_axis, hides=hides), tokens=5))


@pytest.mark.parametrize("heads", [1, 2])
def test_a_hidden_copy_of_a_key_is_no_head(heads: int) -> None:
    analysis = analyzed(heads)
    assert (analysis.violations, analysis.missing) == ([], [])
    assert {"causal window" in each.message for each in analysis.designs} == {True}


@pytest.mark.parametrize("wrong", [{"hides": False}, {"softmax_axis": -2}], ids=["seen", "over the queries"])
def test_copies_that_are_seen_and_a_softmax_over_the_queries_are_violations(wrong: dict[str, Any]) -> None:
    assert analyzed(2, **wrong).violations


class Halo(nn.Module):
    """Each window of 2 x 2 of a map sees itself and the places around it, which `unfold` gathers (HaloNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, columns, width = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3).reshape(batch, -1, 4, width)
        k, v = (unfold(each.permute(0, 3, 1, 2), 4, stride=2, padding=1).mT for each in (k, v))
        k, v = (each.unflatten(2, (width, -1)).mT for each in (k, v))
        hidden = (k == 0).all(-1)[:, :, None]
        read = self.scaled(q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return read.view(batch, rows // 2, columns // 2, 2, 2, width).transpose(2, 3).reshape(x.shape)

    def scaled(self, scores: Tensor) -> Tensor:
        return scores / 8**0.5


class HaloWithoutScale(Halo):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores


@pytest.mark.parametrize(("kind", "found"), [(Halo, set[str]()), (HaloWithoutScale, {"scale"})])
def test_the_scale_of_keys_that_unfold_gathers_is_seen(kind: type[nn.Module], found: set[str]) -> None:
    module = kind()
    prepare(module, seed=1)
    call = tokens_call(module, drawn(2, 4, 6, 8, seed=0))
    call.streams = [Stream("x", "x", 0, (1, 2))]
    analysis = analyze(call)
    assert {each.property for each in analysis.violations} == found
    assert found or any("halo" in each.message for each in analysis.designs)


def hashed(x: Tensor) -> Tensor:
    """Reformer: tokens in the order of their hashes, twice; each looks into its chunk and the one before."""
    q, v = (x @ drawn(8, 8, seed=seed) for seed in range(2))
    order = torch.cat([(x @ drawn(8, seed=seed)).argsort(1) for seed in (2, 3)], 1)
    q, v = (each.gather(1, order[..., None].expand(-1, -1, 8)).unflatten(1, (-1, 2)) for each in (q, v))
    k, v = (torch.cat([each.roll(1, 1), each], 2) for each in (q, v))
    read = ((q @ k.mT / 8**0.5).softmax(-1) @ v).flatten(1, 2)
    back = torch.cat([order[:, :4].argsort(1), 4 + order[:, 4:].argsort(1)], 1)
    return read.gather(1, back[..., None].expand(-1, -1, 8)).unflatten(1, (2, 4)).sum(1)


def test_keys_that_are_chosen_twice_by_their_numbers_are_not_told_apart() -> None:
    analysis = analyze(of_x(hashed), masks=True)
    assert analysis.violations == []
    assert any("heads are not told apart" in each for each in analysis.missing)
