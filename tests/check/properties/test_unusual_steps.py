"""Steps that are not written as usual, and give what attention gives; and readings of calls that are not the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, drawn, joined, of_module, of_q_k_v, split
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream, invocations
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def violated(analysis: Analysis) -> list[str]:
    return [each.property for each in analysis.violations]


def smoothed(q: Tensor, k: Tensor, v: Tensor, *, corrected: bool = True) -> Tensor:
    """Blocks of keys less their mean, put together by the sums of their exponentials."""
    outputs, sums = [], []
    for keys, values in zip(k.chunk(2, -2), v.chunk(2, -2), strict=True):
        mean = keys.mean(-2, keepdim=True)
        scores = q @ (keys - mean).mT / 2
        outputs.append(scores.softmax(-1) @ values)
        sums.append(scores.logsumexp(-1, keepdim=True) + (q @ mean.mT / 2 if corrected else 0))
    weights = torch.stack(sums).softmax(0)
    return (weights * torch.stack(outputs)).sum(0)


def in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first block of keys is read by a line of its own."""
    total, count, most = torch.zeros_like(q), q.new_zeros(*q.shape[:-1], 1), q.new_full((*q.shape[:-1], 1), -1e30)
    for begin in range(0, k.shape[-2], 2):
        scores = q @ k[..., begin : begin + 2, :].mT / 2
        larger = torch.maximum(most, scores.amax(-1, keepdim=True))
        part, scale = (scores - larger).exp(), (most - larger).exp()
        count = count * scale + part.sum(-1, keepdim=True)
        if begin == 0:  # noqa: SIM108 (two lines are what is looked at)
            total = part @ v[..., :2, :]
        else:
            total = total * scale + part @ v[..., begin : begin + 2, :]
        most = larger
    return total / count


@pytest.mark.parametrize("function", [smoothed, in_blocks])
def test_a_function_whose_output_is_that_of_attention_is_right_whatever_its_steps(function: Any) -> None:
    analysis = analyze(of_q_k_v(function), masks=True)
    assert violated(analysis) == []
    assert {"weights-sum-to-one", "scale"} <= analysis.holding
    assert not [each for each in analysis.missing if "mask" not in each]


def test_keys_less_their_mean_are_wrong_where_the_output_shows_it() -> None:
    wrong = analyze(of_q_k_v(lambda q, k, v: smoothed(q, k, v, corrected=False)))
    assert "scale" not in wrong.holding


def by_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of positive q and k, which are features."""
    return ((k[..., None] * v[..., None, :]).cumsum(2) * q[..., None]).sum(-2) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def by_sums_of_each_channel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of positive q and k, which are features."""
    sums = (k[..., None] * v[..., None, :]).cumsum(2) / k.cumsum(2)[..., None]
    return (sums * q[..., None]).sum(-2)


@pytest.mark.parametrize(("function", "properties"), [(by_sums, []), (by_sums_of_each_channel, ["weights-sum-to-one"])])
def test_features_that_are_documented_as_positive_are(function: Callable[..., Tensor], properties: list[str]) -> None:
    assert violated(analyze(of_q_k_v(function))) == properties


class TextAndPicture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.text, self.picture = (nn.Linear(WIDTH, size * WIDTH) for size in (1, 2, 2))

    def forward(self, states: Tensor, text_states: Tensor, picture_states: Tensor) -> Tensor:
        q = split(self.q(states))
        return sum(
            joined(F.scaled_dot_product_attention(q, *map(split, each.chunk(2, -1))))
            for each in (self.text(text_states), self.picture(self.seen(text_states, picture_states)))
        )

    def seen(self, text: Tensor, picture: Tensor) -> Tensor:
        return picture


class AskedByName(nn.Module):
    """Values are made of the key."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return joined(F.scaled_dot_product_attention(split(self.q(query)), *map(split, self.kv(key).chunk(2, -1))))


def of_three(kind: Any, *names: str) -> Invocation:
    module = kind()
    prepare(module, 1)
    given = {name: drawn(2, tokens, WIDTH, seed=tokens) for name, tokens in zip(names, (3, 5, 5), strict=True)}
    streams = [Stream(name, role, 0, (1,)) for name, role in zip(names, "qkv", strict=True)]
    return Invocation(module, given, [*names], streams)


def test_two_sequences_that_are_attended_to_are_no_keys_and_values() -> None:
    analysis = analyze(of_three(TextAndPicture, "states", "text_states", "picture_states"))
    assert violated(analysis) == []
    assert analysis.num_attentions == 2
    assert "values-from-their-input" in violated(analyze(of_three(AskedByName, "query", "key", "value")))


class TwoBranches(nn.Module):
    """Branches with slopes of their own."""

    slopes = ([0.25, 0.0625], [0.5, 0.25])

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=x.dtype)
        outputs = []
        for branch, slopes in zip(self.branches, self.slopes, strict=True):
            q, k, v = map(split, branch(x).chunk(3, -1))
            bias = -torch.tensor(slopes)[:, None, None] * (places[:, None] - places).abs()
            outputs.append(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(x))))
        return outputs[0] + outputs[1]


class SlopesOfOne(TwoBranches):
    slopes = ([0.25, 0.0625], [0.25, 0.25])


class SlopesOfTheOther(TwoBranches):
    slopes = ([0.25, 0.0625], [0.25, 0.0625])


@pytest.mark.parametrize(("kind", "is_wrong"), [(TwoBranches, False), (SlopesOfOne, True), (SlopesOfTheOther, False)])
def test_slopes_of_two_branches_are_judged_branch_by_branch(kind: Any, is_wrong: bool) -> None:
    assert violated(analyze(of_module(kind))) == ["alibi-slopes"] * is_wrong


class Reads(nn.Module):
    """The states of a layer that reads from both ends, tokens first, pooled by weights of their own."""

    def __init__(self, axis: int = 0) -> None:
        super().__init__()
        self.words, self.gru, self.axis = nn.Embedding(11, 6), nn.GRU(6, 4, bidirectional=True), axis
        self.score = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.gru(self.words(tokens))
        return (self.score(states).softmax(self.axis) * states).sum(0)


@pytest.mark.parametrize(("axis", "properties"), [(0, []), (-1, ["softmax-over-keys"])])
def test_states_of_both_directions_are_of_one_token(axis: int, properties: list[str]) -> None:
    call = next(invocations(Reads(axis), args={}))
    assert call.streams[0].token_axes == (0,)
    assert call.arguments["tokens"].shape == (5, 2)
    assert violated(analyze(call)) == properties
