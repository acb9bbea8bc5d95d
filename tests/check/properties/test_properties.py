"""Each property is violated by an implementation that breaks nothing else, at its line, and kept by its right twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attention_styles import tokens_call
from property_cases import Case, all_cases, drawn, joined, of_q_k_v, of_x, split
from property_cases.output_cases import attention
from property_cases.weight_cases import parts_by_each_other
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.properties.catalog import PROPERTIES
from regard.check.target import Invocation, Stream

CASES = all_cases()
TOKENS = 4


def analyzed(call: Invocation, attentions: int = 1) -> Analysis:
    analysis = analyze(call, masks=True)
    assert analysis.num_attentions == attentions, analysis.missing
    return analysis


def test_every_property_has_a_case() -> None:
    assert {case.property for case in CASES} == set(PROPERTIES)


FIRST = {case.property: case for case in reversed(CASES)}
"""The first case of each property."""
FAST = [*FIRST.values()][::4]
"""What is judged in the fast tier."""


def marks(case: Case) -> list[pytest.MarkDecorator]:
    return [] if case in FAST else [pytest.mark.more]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=marks(case)) for case in CASES])
def test_a_property_that_is_violated_is_named_with_its_line(case: Case) -> None:
    violations = analyzed(case.call(case.wrong), case.attentions).violations
    assert {each.property for each in violations} == {case.property}, violations
    if case.has_line:
        assert violations[0].location.text.endswith("# here"), violations[0]


RIGHT = {case.right: case for case in [*CASES, *FIRST.values()]}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=right.__name__, marks=marks(case)) for right, case in RIGHT.items()]
)
def test_the_right_twin_violates_nothing(case: Case) -> None:
    analysis = analyzed(case.call(case.right), case.attentions)
    assert analysis.violations == []


def test_parts_that_are_merged_wrongly_are_named_with_the_weights_of_the_call() -> None:
    call = of_q_k_v(parts_by_each_other)
    (found,) = analyzed(call).violations
    q, k = call.arguments["q"], call.arguments["k"]
    weights = parts_by_each_other(q, k, torch.eye(3, dtype=q.dtype).expand(*k.shape[:2], -1, -1))
    whole = (q @ k.mT / 2).softmax(-1)
    mine, wanted = (float(each[0, 0, 0, :2].sum()) for each in (weights, whole))
    assert found.message.endswith(
        f"query 0 gives the first 2 keys {mine:.4g} together, and {wanted:.4g} by a softmax over all keys"
    )


def test_samples_that_are_mixed_before_the_projections_are_seen_in_the_output() -> None:
    (found,) = analyzed(of_x(lambda x: attention(x - x.mean(0, keepdim=True)))).violations
    assert (found.property, found.step) == ("samples-apart", "output")
    assert found.message == "an output depends on 2 samples of x: they are mixed"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: attention(x) + torch.rand_like(x),
        lambda x: (attention(x), *[x] * int(torch.rand(()) < 0.6)),
    ],
    ids=["numbers", "how many tensors it returns"],
)
def test_samples_are_not_held_against_one_another_where_the_output_is_drawn(function: Any) -> None:
    assert analyzed(of_x(function)).violations == []


def test_the_first_query_s_single_weight_reaches_the_output_as_well() -> None:
    """Row by row, so that the first query's sum is of no other score than the first."""

    def first_token_lost(x: Tensor) -> Tensor:
        seen = [x[:, : i + 1] for i in range(x.shape[1])]
        rows = [(x[:, i, None] @ each.mT / 8**0.5).softmax(-1) @ each for i, each in enumerate(seen)]
        return torch.cat([torch.zeros_like(rows[0]), *rows[1:]], 1)

    (found,) = analyzed(tokens_call(first_token_lost, drawn(1, TOKENS, 8, seed=0))).violations
    assert found.property == "heads-in-output"


@pytest.mark.parametrize("scale", [1, 2], ids=["itself", "twice itself"])
def test_what_is_added_before_an_attention_hides_nothing_that_comes_after(scale: int) -> None:
    def doubled(x: Tensor) -> Tensor:
        projected = x @ drawn(8, 8, seed=4)
        y = attention(projected + scale * projected)
        return y + y

    (found,) = analyzed(of_x(doubled)).violations
    assert found.property == "residual-of-the-input"


def test_sums_of_no_numbers_are_no_residual() -> None:
    """Such as a part of a head that is rotated by rows or columns, where the head is too narrow to have one."""

    def narrow(x: Tensor) -> Tensor:
        none = x[..., :0]
        return attention(torch.cat([x, none + none], -1))

    assert analyzed(of_x(narrow)).violations == []


@pytest.mark.parametrize(("one", "other"), [("x", "y"), ("z", "x")])
def test_of_two_sequences_whose_names_say_nothing_either_may_be_the_context(one: str, other: str) -> None:
    def read_the_first(**given: Tensor) -> Tensor:
        context, x = given[one], given[other]
        q, k, v = x @ drawn(8, 8, seed=4), context @ drawn(8, 8, seed=5), context @ drawn(8, 8, seed=6)
        return (q @ k.mT / 8**0.5).softmax(-1) @ v

    streams = [Stream(one, "x", 0, (1,)), Stream(other, "context", 0, (1,))]
    given = {one: drawn(2, 4, 8, seed=0), other: drawn(2, 3, 8, seed=1)}
    analysis = analyzed(Invocation(read_the_first, given, [], streams))
    assert analysis.violations == []
    (note,) = [each.message for each in analysis.findings if each.property == "queries-from-x"]
    assert note == f"queries are made of {other}, keys and values of {one}: {one} is the context"


def test_a_call_of_one_sample_without_a_batch_is_judged() -> None:
    def divided_by_the_width(x: Tensor) -> Tensor:
        scores = x @ x.T / x.shape[-1]
        return scores.softmax(-1) @ x

    call = Invocation(divided_by_the_width, {"x": drawn(4, 8, seed=0)}, ["x"], [Stream("x", "x", None, (0,))])
    (found,) = analyzed(call).violations
    assert (found.property, found.location.text) == ("scale", "scores = x @ x.T / x.shape[-1]")


def test_weights_whose_heads_a_convolution_mixes_are_no_patches() -> None:
    """Of as many learned keys as heads, so that those of a query look like the channels of a token."""

    def talking(x: Tensor) -> Tensor:
        q, k, v = (split(x @ drawn(8, 8, seed=seed), TOKENS) for seed in range(3))
        learned = drawn(1, TOKENS, TOKENS, 2, seed=4)
        weights = torch.nn.functional.conv2d((q @ learned.mT).softmax(-1), drawn(TOKENS, TOKENS, 1, 1, seed=3))
        return joined((q @ k.mT / 2**0.5).softmax(-1) @ v + weights @ learned)

    assert "patches-whole" not in {each.property for each in analyze(of_x(talking)).violations}


def test_scores_of_a_key_of_several_tokens_are_not_judged_where_it_has_no_weight() -> None:
    def mean_is_hidden(x: Tensor) -> Tensor:
        q, *projected = (x @ drawn(8, 8, seed=seed) for seed in range(3))
        k, v = (torch.cat([each.mean(1, keepdim=True), each], 1) for each in projected)
        hidden = torch.arange(TOKENS + 1) == 0
        return (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    assert analyzed(of_x(mean_is_hidden)).missing == [
        "its scores are not each of one query token and one key token: not judged"
    ]


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_tokens_that_were_pooled_before_belong_to_their_samples(batch_axis: int) -> None:
    def pooled(x: Tensor) -> Tensor:
        pairs = x.unflatten(1 - batch_axis, (-1, 2)).mean(2 - batch_axis)
        q, k, v = ((pairs @ drawn(8, 8, seed=seed)).movedim(batch_axis, 0) for seed in range(3))
        return (q @ k.mT / 8**0.5).softmax(-1) @ v

    x = drawn(2, 6, 8, seed=0).movedim(0, batch_axis)
    call = Invocation(pooled, {"x": x.contiguous()}, ["x"], [Stream("x", "x", batch_axis, (1 - batch_axis,))])
    assert analyzed(call).violations == []


def test_keys_of_two_sequences_need_no_positions_to_differ() -> None:
    """A resampler's latent tokens attend to a context and to themselves."""
    to_q, to_k = drawn(10, 10, seed=1), drawn(10, 10, seed=2)

    def resampled(latents: Tensor, context: Tensor) -> Tensor:
        both = torch.cat((context, latents), 1)
        return ((latents @ to_q) @ (both @ to_k).mT / 10**0.5).softmax(-1) @ both

    streams = [Stream("latents", "x", 0, (1,)), Stream("context", "context", 0, (1,))]
    given = {"latents": drawn(2, 3, 10, seed=3), "context": drawn(2, 5, 10, seed=4)}
    found = analyze(Invocation(resampled, given, [], streams)).findings
    assert [each.kind for each in found if each.step == "positions"] == ["absent"]
