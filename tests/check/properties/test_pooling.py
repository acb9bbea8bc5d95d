"""Attentive pooling by weights that convolutions of one token make."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, of_module
from property_cases.single_weight_cases import OfOneHead
from regard.check import check
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Pooled(nn.Module):
    """(batch, channels, frames)."""

    def __init__(self, axis: int = -1, *, of_all: bool = False) -> None:
        super().__init__()
        self.axis, self.of_all = axis, of_all
        self.score = nn.Sequential(nn.Conv1d(6, 4, 1), nn.Tanh(), nn.Conv1d(4, 6, 1))

    def forward(self, frames: Tensor) -> Tensor:
        weights = self.score(frames).softmax(self.axis)
        mean = (frames * weights).sum(-1)
        other = frames.mean(-1) if self.of_all else mean
        variance = (weights * frames.square()).sum(-1) - other.square()
        return torch.cat((mean, variance.clamp(min=1e-4).sqrt()), 1)


def analyzed(module: nn.Module) -> Analysis:
    prepare(module, 1)
    return analyze(Invocation(module, {"frames": drawn(2, 6, 5, seed=3)}, ["frames"], [Stream("frames", "x", 0, (2,))]))


@pytest.mark.parametrize("of_all", [False, True])
def test_weights_of_each_channel_and_frame_are_a_design(of_all: bool) -> None:
    analysis = analyzed(Pooled(of_all=of_all))
    assert [each.property for each in analysis.designs] == ["attentive-pooling"]
    assert [each.property for each in analysis.violations] == ["variance-of-the-weights"] * of_all


def test_weights_that_sum_to_one_over_the_channels_are_none_of_frames() -> None:
    assert analyzed(Pooled(axis=1)).missing


class Averaged(Pooled):
    """The mean of frames times weights, where their sum is meant; times a number."""

    def __init__(self, *, times: int = 1, gates: bool = False) -> None:
        super().__init__()
        self.times, self.gates = times, gates

    def forward(self, frames: Tensor) -> Tensor:
        scores = self.score(frames)
        weights = scores.sigmoid() if self.gates else scores.softmax(-1)
        return self.times * (weights * frames).mean(dim=-1)


@pytest.mark.parametrize(
    ("module", "told"),
    [(Averaged(), ["weights-kept"]), (Averaged(times=5), []), (Averaged(gates=True), [])],
    ids=["a mean", "times the number of frames", "of gates"],
)
def test_the_mean_of_tokens_times_weights_that_sum_to_one_is_told(module: nn.Module, told: list[str]) -> None:
    assert [each.property for each in analyzed(module).violations] == told


def test_a_softmax_over_one_number_may_be_of_one_head() -> None:
    assert analyze(of_module(OfOneHead)).violations == []


class OfAPerceptron(nn.Module):
    """Scores of each token by a perceptron, which may read a learned vector beside it (Ma et al. 2017, IAN)."""

    def __init__(self, *, beside: bool, of_tokens: bool = False) -> None:
        super().__init__()
        self.keys, self.of_tokens = nn.Linear(8, 8), of_tokens
        if beside or of_tokens:
            self.asks = nn.Linear(8, 8)
        if beside:
            self.asking = nn.Parameter(torch.randn(8))
        if not of_tokens:
            self.weight = nn.Parameter(torch.randn(16 if beside else 8))
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        keys = self.keys(x)
        if self.of_tokens:
            return torch.tanh(self.asks(x) @ keys.mT / 8**0.5).softmax(-1) @ keys
        read = torch.cat([keys, self.asks(self.asking).expand_as(keys)], -1) if self.beside else keys
        return torch.tanh(read @ self.weight).softmax(-1).unsqueeze(1) @ keys


@pytest.mark.parametrize("beside", [False, True])
def test_scores_of_a_perceptron_with_a_learned_vector_may_end_in_tanh(beside: bool) -> None:
    found = analyze(of_module(lambda: OfAPerceptron(beside=beside)))
    assert not found.violations
    assert "softcap" in {each.property for each in found.designs}


def test_scores_of_two_tokens_that_end_in_tanh_are_capped_to_one() -> None:
    found = analyze(of_module(lambda: OfAPerceptron(beside=False, of_tokens=True)))
    assert [each.property for each in found.violations] == ["softcap-restored"]


class PooledByHand(nn.Module):
    """One vector of a text by exponentials of additive scores, over their sum and a small number."""

    def __init__(self, axis: int = 1, least: float = 1e-8, *, is_bounded: bool = False) -> None:
        super().__init__()
        self.axis, self.least, self.is_bounded = axis, least, is_bounded
        self.score = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        exponentials = self.score(x).exp()
        if attn_mask is not None:
            exponentials = exponentials * attn_mask.unsqueeze(2)
        total = exponentials.sum(self.axis, keepdim=True)
        total = total.clamp(min=self.least) if self.is_bounded else total + self.least
        return torch.bmm(x.mT, exponentials / total).squeeze(-1)


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_softmax_of_learned_queries_may_be_written_by_hand_beside_a_small_number(is_bounded: bool) -> None:
    assert check(PooledByHand(is_bounded=is_bounded)).verdict == "right"


def test_a_softmax_by_hand_over_the_samples_is_wrong() -> None:
    assert check(PooledByHand(axis=0)).verdict == "wrong"


class Asking(nn.Module):
    """No attention: a text that is all zeros is returned as it is, and another one is divided by its sum."""

    def forward(self, frames: Tensor) -> Tensor:
        return frames if frames.sum() == 0 else frames / frames.sum(-1, keepdim=True)


def test_an_operation_that_returns_no_tensor_makes_no_weights() -> None:
    assert not analyzed(Asking()).num_attentions
