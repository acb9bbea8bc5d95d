"""A cache in any form that people give it is handed over as its code does it, and has to change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cached_attentions as cached
from attention_styles import tokens_call
from property_cases import drawn, joined, of_module, of_q_k_v, of_x, split
from property_cases.cache_cases import (
    W_K,
    W_Q,
    W_V,
    MemoryOfInputs,
    Mems,
    Past,
    attended,
    handed_over,
    length,
    past_tokens_scaled,
    projected,
)
from property_cases.cache_place_cases import ReadsEmptyPlaces, told_its_start
from regard.check.conclusion import conclude
from regard.check.properties.analyze import analyze
from regard.check.properties.caches.token_by_token import cache_findings
from regard.check.properties.finding import Finding
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import Stream, invocations
from regard.check.target.cache_forms import CacheForm
from regard.check.target.cache_runs import CachedCall

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
        cached.ObjectOfItsOwnClass,
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
        (cached.MaskedForAPrompt, "one new token at a time is right; of several new tokens at once, token 2 differs"),
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


def test_a_call_of_queries_keys_and_values_is_given_the_same_tokens_as_all_three() -> None:
    def of_three(q: Tensor, k: Tensor, v: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        before = length(past)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return attended(q, k, v, before), (k, v)

    (found,) = cache_findings(of_q_k_v(of_three), [])
    assert (found.kind, found.property) == ("holds", "cache-equals-whole")


def test_tables_of_which_the_code_takes_the_rows_of_its_tokens_are_handed_over_whole() -> None:
    def takes_its_rows(x: Tensor, cos: Tensor, sin: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        before = length(past)
        rows = slice(before, before + x.shape[1])
        left, right = (x @ W_K).chunk(2, -1)
        turned = torch.cat([left * cos[rows] - right * sin[rows], right * cos[rows] + left * sin[rows]], -1)
        k, v = split(turned), split(x @ W_V)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return attended(split(x @ W_Q), k, v, before), (k, v)

    call = of_x(takes_its_rows)
    angles = drawn(4, 1, seed=1)
    call.arguments |= {"cos": angles.cos(), "sin": angles.sin()}
    (found,) = cache_findings(call, [])
    assert (found.kind, found.property) == ("holds", "cache-equals-whole")


@pytest.mark.parametrize("form", ["allowed", "square allowed"])
def test_a_mask_of_new_tokens_has_a_row_for_each_of_them_and_a_square_one_for_all_so_far(form: str) -> None:
    shown = []

    def masked(x: Tensor, mask: Tensor | None = None, past: Past = None) -> Tensor:
        assert mask is not None
        shown.append(mask[0, 0].int().tolist())
        return x

    list(CachedCall(of_x(masked), CacheForm("through past", ("past",)), mask=("mask", form)).parts([(0, 2), (2, 4)]))
    all_rows = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert shown == [[[1, 0], [1, 1]], all_rows if form.startswith("square") else all_rows[2:]]


def test_a_difference_before_anything_is_cached_is_one_of_token_0() -> None:
    def weakened(x: Tensor, past: Past = None, use_cache: bool = False) -> Any:
        y, past = handed_over(x, past)
        return (0.9 * y, past) if use_cache else y

    (found,) = cache_findings(of_x(weakened), [])
    assert (found.kind, found.property) == ("violation", "cache-equals-whole")
    assert "the output of token 0 differs by up to" in found.message


def test_the_first_of_several_new_tokens_that_differs_by_more_than_rounding_is_named() -> None:
    def wrong_from_the_second_of_several_on(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        y, now = handed_over(x, past)
        if past is not None and x.shape[1] > 1:
            y = y * torch.tensor([1 + 1e-13, 2.0], dtype=y.dtype)[:, None]
        return 1e6 * y, now

    _, note = cache_findings(of_x(wrong_from_the_second_of_several_on), [])
    assert "of several new tokens at once, token 3 differs by up to" in note.message


def test_a_difference_that_a_mask_of_the_caller_may_mend_is_a_note() -> None:
    def masked(x: Tensor, mask: Tensor | None = None, past: Past = None) -> tuple[Tensor, Past]:
        y, past = past_tokens_scaled(x, past)
        return (y if mask is None else y * mask[..., :1]), past

    (found,) = cache_findings(of_x(masked), [])
    assert found.kind == "note"
    assert found.message.endswith("it was not found out which positions and masks a part of the tokens needs")


def test_an_added_mask_that_is_counted_from_0_is_named_with_its_line() -> None:
    def added_mask_from_zero(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        q, k, v = projected(x, past)
        hidden = torch.full((1, 1, x.shape[1], k.shape[2]), -torch.inf).triu(1)  # here
        return joined((q @ k.mT / 2 + hidden).softmax(-1) @ v), (k, v)

    (found,) = analyze(of_x(added_mask_from_zero)).violations
    assert found.message.startswith("the mask of a new token is counted from 0: with a cache keys 1, 2 are hidden")
    assert found.location is not None
    assert found.location.text.endswith("# here")


@pytest.mark.more
def test_a_mistake_with_a_cache_makes_the_verdict() -> None:
    found = conclude(cached.DictWithRestart, {}, UserSettings())
    assert found.verdict == "wrong"
    assert [each.id for each in found.mistakes] == ["cache-positions"]


class Decoding(nn.Module):
    """Every call goes on from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.reset()

    def reset(self) -> None:
        self.past: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.past is not None:
            k, v = torch.cat([self.past[0], k], 1), torch.cat([self.past[1], v], 1)
        self.past = (k.detach(), v.detach())
        later = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
        return (q @ k.mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v


class ForgettingValues(Decoding):
    """Keys are kept twice."""

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        assert self.past is not None
        self.past = (self.past[0], self.past[0])
        return output


def test_calls_that_go_on_from_one_another_until_they_are_cleared_are_right() -> None:
    assert conclude(Decoding, {}, UserSettings()).verdict == "right"
    assert conclude(ForgettingValues, {}, UserSettings()).verdict == "wrong"


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


class MaskOfItsCaller(ReadsEmptyPlaces):
    """Empty places are hidden by a mask that its caller hands over."""

    def forward(self, x: Tensor, start_pos: int, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, start_pos)


def test_empty_places_of_a_cache_are_left_to_the_mask_of_the_caller() -> None:
    call = told_its_start(MaskOfItsCaller)
    call.masks = ["mask"]
    assert analyze(call).violations == []
    call.masks = []
    assert [each.property for each in analyze(call).violations] == ["cache-places"]


class TokensFirst(MemoryOfInputs):
    """The states that each layer reads, kept with the tokens first."""

    def forward(self, x: Tensor, mems: Mems = None) -> tuple[Tensor, Mems]:
        mems = mems if mems is None else [each.transpose(0, 1) for each in mems]
        x, kept = super().forward(x.transpose(0, 1), mems)
        return x.transpose(0, 1), [each.transpose(0, 1) for each in kept or ()]


def test_a_cache_is_judged_where_a_call_has_more_samples_than_tokens() -> None:
    call = of_module(TokensFirst)
    call.arguments["x"], call.streams = drawn(2, 5, 8, seed=0), [Stream("x", "x", 1, (0,))]
    held = [each.message for each in analyze(call).findings if each.property == "cache-equals-whole"]
    assert held == ["token by token through mems equals all at once"]


class NewTokensReturned(nn.Module):
    """Returns the keys and values of the new tokens alone: as one tensor, to which its caller joins them, or a pair."""

    def __init__(self, *, is_pair: bool = False) -> None:
        super().__init__()
        self.is_pair = is_pair

    def forward(self, x: Tensor, layer_past: Any = None) -> tuple[Tensor, Any]:
        q, k, v = projected(x, None)
        present = (k, v) if self.is_pair else torch.stack([k, v])
        n = 0
        if layer_past is not None:
            n = layer_past[0].shape[2]
            k, v = torch.cat([layer_past[0], k], 2), torch.cat([layer_past[1], v], 2)
        return attended(q, k, v, n), present


def test_a_caller_may_join_what_is_returned_of_new_tokens() -> None:
    found = list(analyze(of_module(NewTokensReturned)).findings)
    said = "token by token through layer_past, to which its caller joins what is returned, equals all at once"
    assert said in {each.message for each in found}
    assert not [each for each in found if each.kind == "violation"]
    (wrong,) = analyze(of_module(lambda: NewTokensReturned(is_pair=True))).violations
    assert wrong.property.startswith("cache-")
