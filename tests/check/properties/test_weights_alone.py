"""Weights that are returned without values are held against what is asked of every attention."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, of_module, of_x, split
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream, invocations

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

WIDTH = 8
W_Q, W_K = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (50, 51))
LATER = torch.ones(4, 4, dtype=torch.bool).triu(1)


def scores(x: Tensor) -> Tensor:
    return split(x @ W_Q) @ split(x @ W_K).mT / 2


def weights(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return (scores(x) if mask is None else scores(x).masked_fill(~mask, -torch.inf)).softmax(-1)


def causal(x: Tensor) -> Tensor:
    return scores(x).masked_fill(LATER, -torch.inf).softmax(-1)


def samples_and_heads_as_one_axis(x: Tensor) -> Tensor:
    return weights(x).flatten(0, 1)


def of_the_last_query(x: Tensor) -> Tensor:
    return weights(x)[:, 0, -1]


def not_scaled(x: Tensor) -> Tensor:
    return (2 * scores(x)).softmax(-1)


def seeing_itself_never(x: Tensor) -> Tensor:
    return scores(x).masked_fill(LATER.mT, -torch.inf).softmax(-1)


def mask_thrown_away(x: Tensor, mask: Tensor | None = None) -> Tensor:
    found = scores(x)
    if mask is not None:
        found.masked_fill(~mask, -torch.inf)
    return found.softmax(-1)


def masked_by_a_large_number(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return (scores(x) if mask is None else scores(x).masked_fill(~mask, 1e9)).softmax(-1)


def with_mask(function: object) -> Invocation:
    return of_x(function, masks=("mask",))


@pytest.mark.parametrize("call", [with_mask(weights), of_x(causal), of_x(samples_and_heads_as_one_axis)])
def test_right_weights_are_judged_and_right(call: Invocation) -> None:
    analysis = analyze(call, masks=True)
    assert analysis.violations == []
    assert [each.property for each in analysis.designs] == ["weights-alone"]
    assert {("holds", "scale"), ("holds", "weights-sum-to-one")} <= {
        (each.kind, each.property) for each in analysis.findings
    }


def test_a_part_of_the_weights_tells_nothing_of_the_others() -> None:
    analysis = analyze(of_x(of_the_last_query), masks=True)
    assert (analysis.violations, [each.property for each in analysis.designs]) == ([], ["weights-alone"])


@pytest.mark.parametrize(
    ("call", "property"),
    [
        (of_x(not_scaled), "scale"),
        (of_x(seeing_itself_never), "mask-pattern"),
        (with_mask(mask_thrown_away), "mask-argument"),
        (with_mask(masked_by_a_large_number), "mask-argument"),
    ],
)
def test_wrong_weights_are_wrong_without_values(call: Invocation, property: str) -> None:
    assert {each.property for each in analyze(call, masks=True).violations} == {property}


def test_a_query_that_is_added_without_a_function_around_it_has_no_effect() -> None:
    """The weights of one state over a sequence, as in sequence-to-sequence models before the Transformer."""

    def added(x: Tensor, context: Tensor, *, around: bool) -> Tensor:
        total = x[:, :1] @ W_Q + context @ W_K
        return ((total.tanh() if around else total) @ drawn(WIDTH, 1, seed=52)).squeeze(-1).softmax(-1)

    streams = [Stream("x", "x", 0, (1,)), Stream("context", "context", 0, (1,))]
    arguments = {"x": drawn(2, 1, WIDTH, seed=1), "context": drawn(2, 5, WIDTH, seed=2)}
    for around, wanted in ((True, set()), (False, {"query-in-the-weights"})):
        call = Invocation(
            lambda x, context, around=around: added(x, context, around=around), arguments, [*arguments], streams
        )
        assert {each.property for each in analyze(call).violations} == wanted


class Shares(nn.Module):
    """A share of each token for each of some heads, by a score that is made of the token and of the mean of all."""

    def __init__(self, axis: int = -1, *, log: bool = False, in_place: bool = False, sums: bool = False) -> None:
        super().__init__()
        self.axis, self.log, self.in_place, self.sums = axis, log, in_place, sums
        self.p, self.q = (nn.Parameter(drawn(WIDTH, 3, seed=seed)) for seed in (53, 54))

    def forward(self, x: Tensor) -> Tensor:
        scores = ((x.cumsum(1) if self.sums else x.mean(1, keepdim=True)) @ self.p * (x @ self.q)).tanh().mT
        if self.in_place:
            scores /= scores.norm(dim=1, keepdim=True)
        return scores.log_softmax(self.axis) if self.log else scores.softmax(self.axis)


@pytest.mark.parametrize("log", [False, True])
def test_shares_of_tokens_that_are_returned_alone_are_a_design(log: bool) -> None:
    analysis = analyze(of_module(partial(Shares, log=log)))
    assert (analysis.complete, analysis.violations) == (True, [])
    assert [each.property for each in analysis.designs] == ["weights-alone"]


def test_shares_whose_gradients_cannot_be_computed_are_wrong() -> None:
    assert {each.property for each in analyze(of_module(partial(Shares, in_place=True))).violations} == {
        "gradients-computed"
    }


@pytest.mark.parametrize("kind", [partial(Shares, 1), partial(Shares, sums=True)])
def test_shares_over_heads_or_of_an_order_are_not_known(kind: partial[Shares]) -> None:
    assert "weights-alone" not in {each.property for each in analyze(of_module(kind)).designs}


class PointerLogits(nn.Module):
    """The scores that a state gives each place of a sequence: whoever calls takes their softmax."""

    def __init__(self, dim: int, *, moved: bool = False, clipped: bool = False) -> None:
        super().__init__()
        self.moved, self.clipped = moved, clipped
        self.of_state, self.of_ref, self.v = nn.Linear(dim, dim), nn.Conv1d(dim, dim, 1), nn.Parameter(torch.ones(dim))

    def forward(self, query: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
        refs = self.of_ref(ref.permute(1, 2, 0))  # ref: (S, B, D), query: (B, D)
        states = self.of_state(query.flip(0) if self.moved else query).unsqueeze(2).repeat(1, 1, refs.size(2))
        scores = (self.v[:, None] * (states + refs).tanh()).sum(1) if self.clipped else self.v @ (states + refs).tanh()
        return refs, 10 * scores.tanh() if self.clipped else scores


class Comparison(nn.Module):
    """A number for each place."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = PointerLogits(dim)

    def forward(self, query: Tensor, ref: Tensor) -> Tensor:
        return self.inner(query, ref)[1]


@pytest.mark.parametrize("clipped", [False, True])
def test_scores_alone_are_judged_where_the_code_says_that_it_points(clipped: bool) -> None:
    call = next(iter(invocations(PointerLogits, args={"dim": WIDTH, "clipped": clipped})))
    assert [(each.argument, each.token_axes) for each in call.streams] == [("query", ()), ("ref", (0,))]
    analysis = analyze(call)
    assert (analysis.violations, analysis.complete) == ([], True)
    assert [each.property for each in analysis.designs] == ["weights-alone", "additive-scores"]
    assert "weights-sum-to-one" not in analysis.holding  # nobody took the softmax
    moved = analyze(next(iter(invocations(PointerLogits, args={"dim": WIDTH, "moved": True}))))
    assert "samples-apart" in {each.property for each in moved.violations}


def test_a_number_of_each_token_is_no_attention_by_itself() -> None:
    assert analyze(next(iter(invocations(Comparison, args={"dim": WIDTH})))).num_attentions == 0


class OfEachStep(nn.Module):
    """A map of the nodes in each step, of tokens as they are."""

    def forward(self, x: Tensor) -> Tensor:
        batch_size, num_nodes, num_steps, in_channels = x.shape
        x = x.permute(0, 2, 1, 3).reshape(-1, num_nodes, in_channels)
        weights = (x @ x.mT / in_channels**0.5).softmax(-1)
        return weights.reshape(batch_size, num_steps, num_nodes, num_nodes)


class OverSamplesAndSteps(OfEachStep):
    def forward(self, x: Tensor) -> Tensor:
        batch_size, num_nodes, num_steps, in_channels = x.shape
        x = x.permute(0, 2, 1, 3).reshape(-1, num_nodes, in_channels)
        weights = (x @ x.mT / in_channels**0.5).softmax(0)
        return weights.reshape(batch_size, num_steps, num_nodes, num_nodes)


@pytest.mark.parametrize(("kind", "is_wrong"), [(OfEachStep, False), (OverSamplesAndSteps, True)])
def test_nodes_attend_in_each_step_where_channels_stand_last(kind: type[nn.Module], is_wrong: bool) -> None:
    findings = analyze(next(invocations(kind(), args={}))).findings
    assert [each.message for each in findings if each.kind == "violation"] == (
        ["the softmax sums to one over something else than the keys of each query"] if is_wrong else []
    )
    assert not is_wrong or all(each.kind != "open" for each in findings if each.step == "weights")
