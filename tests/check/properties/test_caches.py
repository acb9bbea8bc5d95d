"""A cache in any form that people give it is handed over as its code does it, and has to change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cached_attentions as cached
from attention_styles import tokens_call
from property_cases import drawn, of_module
from regard.check.conclusion import conclude
from regard.check.properties.analysis import analyze
from regard.check.properties.caches import cache_findings
from regard.check.properties.finding import Finding
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import invocations

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

IN_TIME = (cached.TupleReturned,)
"""What is judged in the fast tier."""


def kinds(*several: type) -> list[Any]:
    return [
        pytest.param(kind, id=kind.__name__, marks=[] if kind in IN_TIME else [pytest.mark.more]) for kind in several
    ]


def of_its_cache(kind: type) -> list[Finding]:
    analysis = analyze(next(invocations(kind, args={})))
    assert analysis.num_attentions, analysis.missing
    return [each for each in analysis.findings if each.property.startswith("cache-") or each.kind == "violation"]


@pytest.mark.parametrize(
    "kind",
    kinds(
        cached.TupleReturned,
        cached.GivenTheWholeText,
        cached.KeysAndValues,
        cached.DictWritten,
        cached.ObjectUpdated,
        cached.BuffersByStart,
        cached.InstalledByInputPos,
        cached.KeptBySetup,
        cached.TwoLayers,
        cached.MaskOfTheCaller,
        cached.NotCausal,
        cached.RollingWindow,
    ),
)
def test_a_cache_of_any_form_is_exercised(kind: type) -> None:
    (found,) = of_its_cache(kind)
    assert (found.kind, found.property) == ("holds", "cache-equals-whole")
    assert found.message.endswith("equals all at once")


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        pytest.param(
            cached.DictWithRestart,
            "cache-positions",
            "token 2 gets position 0 with a cache",
            marks=pytest.mark.more,
        ),
        pytest.param(
            cached.BuffersWithMaskFromZero, "cache-mask", "keys 1, 2 are hidden from token 2", marks=pytest.mark.more
        ),
        pytest.param(cached.OwnMaskFromZero, "cache-mask", "keys 1, 2 are hidden from token 2", marks=pytest.mark.more),
        pytest.param(
            cached.WindowThatForgets, "cache-equals-whole", "there are 2 keys for token 2", marks=pytest.mark.more
        ),
    ],
)
def test_a_mistake_with_a_cache_is_named_with_its_numbers(kind: type, name: str, said: str) -> None:
    (found,) = of_its_cache(kind)
    assert (found.kind, found.property) == ("violation", name)
    assert said in found.message
    assert "the output of token 2 differs by up to" in found.message
    assert found.location is not None


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (cached.NotCausalTwice, "without a causal mask of its own"),
        (cached.CrossAttention, "not exercised"),
        (cached.RightForOneToken, "one new token at a time is right; of several new tokens at once, token 2 differs"),
        (cached.Accumulating, "every call goes on from the one before until it is cleared"),
    ],
)
def test_what_cannot_be_judged_is_a_note(kind: type, said: str) -> None:
    found = of_its_cache(kind)
    assert {each.kind for each in found} <= {"note", "holds"}
    assert any(said in each.message for each in found if each.kind == "note")


def test_a_cache_of_which_nothing_is_known_is_a_note() -> None:
    def served(x: Tensor, cache_params: Any = None) -> Tensor:
        keys = x if cache_params is None else cache_params.of_this_server(x)
        return (x @ keys.mT).softmax(-1) @ keys

    (found,) = cache_findings(tokens_call(served, drawn(2, 4, 8, seed=0)), [])
    assert found.message == "cache cache_params: not exercised: it was not found out how it is handed over"


@pytest.mark.more
def test_a_cache_of_code_that_draws_is_not_judged() -> None:
    (found,) = cache_findings(next(invocations(cached.AlwaysDropping, args={})), [])
    assert found.message.endswith("not exercised: the same call gives another output with another seed")


def test_without_a_cache_nothing_is_run() -> None:
    calls = []

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rope_cache", torch.zeros(4))
            self.k = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return x

    assert list(cache_findings(tokens_call(Plain(), drawn(2, 4, 8, seed=0)), [])) == []
    assert calls == []


@pytest.mark.more
def test_a_mistake_with_a_cache_makes_the_verdict() -> None:
    found = conclude(cached.DictWithRestart, {}, UserSettings())
    assert found.verdict == "wrong"
    assert [each.id for each in found.mistakes] == ["cache-positions"]


class CachedForInference(nn.Module):
    """Keys and values are written into tensors that it keeps, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.register_buffer("keys", torch.zeros(2, 6, 8))
        self.register_buffer("values", torch.zeros(2, 6, 8))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        self.keys[:, :tokens] = self.k(x).detach()
        self.values[:, :tokens] = self.v(x).detach()
        scores = self.q(x) @ self.keys[:, :tokens].mT / 8**0.5
        return scores.softmax(-1) @ self.values[:, :tokens]


def test_what_is_written_into_a_cache_needs_no_gradient() -> None:
    analysis = analyze(of_module(CachedForInference))
    assert analysis.violations == []
    assert "no-gradient-in-cache" in [each.property for each in analysis.findings if each.kind == "note"]
    assert conclude(CachedForInference, {}, UserSettings()).verdict != "wrong"
