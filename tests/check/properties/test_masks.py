"""Masks that are handed over: which findings they give beside those of each property's case."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_styles import heads_call, tokens_call
from property_cases import drawn, joined, of_q_k_v, of_x, of_x_and_context, split
from property_cases.mask_cases import as_many_as_its_window, more_than_its_window, square_call
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding
from regard.check.report.steps import step_results
from regard.check.target import Stream, invocations

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def masks_of(analysis: Analysis) -> list[Finding]:
    return [each for each in analysis.findings if each.step == "mask"]


def two_masks(q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -torch.inf)
    return scores.softmax(-1) @ v


def test_a_mask_of_queries_hides_no_key_and_stays_open() -> None:
    found = masks_of(analyze(of_q_k_v(two_masks, masks=("query_mask", "mask")), masks=True))
    assert {each.kind for each in found} == {"absent", "open", "holds"}
    (message,) = [each.message for each in found if each.kind == "open"]
    assert message == "query_mask says of no key that it is hidden: not judged"


def hides_the_last(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Of a mask the number of keys is read that are there: they come first."""
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(torch.arange(k.shape[-2]) >= mask.sum(-1)[:, None, None, None], -torch.inf)
    return scores.softmax(-1) @ v


def with_positions_of_what_is_left(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Padding may stand in front: the first token that is none has the first position."""
    real = torch.ones(x.shape[:2], dtype=torch.long) if mask is None else mask.long()
    x = x + drawn(8, 8, seed=5)[(real.cumsum(1) - 1).clamp(min=0)]
    scores = (split(x) @ split(x).mT / 2).masked_fill(real[:, None, None] == 0, -torch.inf)
    return joined(scores.softmax(-1) @ split(x))


def test_a_mask_may_move_the_positions_of_what_it_leaves() -> None:
    found = masks_of(analyze(of_x(with_positions_of_what_is_left, masks=("mask",)), masks=True))
    assert {each.kind for each in found} == {"absent", "holds"}


def of_the_last_token(x: Tensor, context: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(x[:, -1:], context, context)


def test_tokens_that_ask_nothing_are_hidden_from_by_nothing() -> None:
    analysis = analyze(of_x_and_context(of_the_last_token), masks=True)
    assert analysis.violations == []
    assert {each.kind for each in masks_of(analysis)} == {"absent", "open"}


def after_a_memory(x: Tensor, context: Tensor, causal: bool = False) -> Tensor:
    """Keys are those of the context, then those of x: a query sees all that is remembered."""
    keys = torch.cat([context, x], 1)
    scores = x @ keys.mT / x.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1 + context.shape[1]).bool(), -torch.inf)
    return scores.softmax(-1) @ keys


def after_a_memory_as_if_none(x: Tensor, context: Tensor, causal: bool = False) -> Tensor:
    keys = torch.cat([context, x], 1)
    scores = x @ keys.mT / x.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(2 + context.shape[1]).bool(), -torch.inf)
    return scores.softmax(-1) @ keys


def with_flag_and_context(function: Any) -> Analysis:
    call = of_x_and_context(function)
    call.causal_flags = ["causal"]
    return analyze(call, masks=True)


def test_a_causal_flag_is_asked_of_the_keys_of_the_sequence_that_asks() -> None:
    assert with_flag_and_context(after_a_memory).violations == []
    (found,) = with_flag_and_context(after_a_memory_as_if_none).violations
    assert found.message == "a query sees up to 1 later positions: the causal mask is off by 1"


def of_two_other_sequences(x: Tensor, context: Tensor, memory: Tensor, causal: bool = False) -> Tensor:
    keys = torch.cat([memory, context], 1)
    scores = x @ keys.mT / x.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1 + 3).bool(), -torch.inf)
    return scores.softmax(-1) @ keys


def test_keys_of_several_other_sequences_have_no_one_order() -> None:
    call = of_x_and_context(of_two_other_sequences)
    call.arguments["memory"] = drawn(2, 3, 8, seed=2)
    call.streams.append(Stream("memory", "context", 0, (1,)))
    call.causal_flags = ["causal"]
    analysis = analyze(call, masks=True)
    assert analysis.violations == []
    message = "causal=True was not exercised: the keys are of several sequences, none of which asks"
    assert message in [each.message for each in masks_of(analysis)]


def always_after_a_memory(x: Tensor, context: Tensor) -> Tensor:
    """Causal."""
    return after_a_memory(x, context, causal=True)


def test_a_memory_that_all_see_leaves_a_mask_causal() -> None:
    analysis = analyze(of_x_and_context(always_after_a_memory), masks=True)
    assert analysis.violations == []
    assert "holds" in {each.kind for each in masks_of(analysis)}


def test_a_mask_that_is_counted_blocks_keys_that_stand_together() -> None:
    found = masks_of(analyze(of_q_k_v(hides_the_last, masks=("mask",)), masks=True))
    assert {each.kind for each in found} == {"absent", "holds"}


def may_read_inputs(
    hidden: Tensor, inputs: Tensor | None = None, inputs_mask: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Perceiver's: the mask of inputs is for those that come from elsewhere."""
    source, of_keys = (hidden, mask) if inputs is None else (inputs, inputs_mask)
    return nn.functional.scaled_dot_product_attention(hidden, source, source, of_keys)


def test_a_mask_of_inputs_that_are_not_given_is_not_judged() -> None:
    found = masks_of(analyze(of_x(may_read_inputs, masks=("inputs_mask", "mask")), masks=True))
    assert [each.message for each in found if "inputs_mask" in each.message] == []
    assert "holds" in {each.kind for each in found}


def reads_context_and_itself(latents: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
    """Perceiver's resampler."""
    source = torch.cat((context, latents), 1)
    return nn.functional.scaled_dot_product_attention(latents, source, source, mask)


def test_the_columns_of_a_mask_are_in_the_order_of_the_keys() -> None:
    call = next(invocations(reads_context_and_itself, args={}, inputs=None))
    (found,) = [each for each in masks_of(analyze(call, masks=True)) if each.property == "mask-form"]
    assert found.message == "mask hides exactly the keys that it blocks; True in mask means allowed"


def by_the_number_of_axes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Canine's: of three axes the mask is 1 where a key is allowed, of four it is added to the scores."""
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores + ((1.0 - mask[:, None].float()) * -1e9 if mask.ndim == 3 else mask)
    return scores.softmax(-1) @ v


def test_a_mask_is_tried_with_each_number_of_axes_that_the_code_tells_apart() -> None:
    found = masks_of(analyze(of_q_k_v(by_the_number_of_axes, masks=("mask",)), masks=True))
    assert [each.message for each in found if each.property == "mask-form"] == [
        "mask hides exactly the keys that it blocks; 1 in mask means allowed"
    ]


def without_documentation(q: Tensor, k: Tensor, v: Tensor, window: int = 4) -> Tensor:
    return more_than_its_window(q, k, v, window)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_documentation, "causal window: with window=4, a query sees itself and the 4 keys before it"),
        (
            as_many_as_its_window,
            "causal window of 4: a query sees itself and the 3 keys before it, as window=4 says",
        ),
    ],
)
def test_a_window_is_judged_with_more_tokens_than_it_has(function: Any, message: str) -> None:
    (found,) = [each for each in masks_of(analyze(square_call(function), masks=True)) if each.kind == "design"]
    assert found.message == f"its own mask: {message}"


def test_a_window_that_is_too_long_to_be_tried_stays_open() -> None:
    found = masks_of(analyze(square_call(functools.partial(without_documentation, window=4096)), masks=True))
    assert "window=4096: not exercised with more tokens than that" in [each.message for each in found]


class TwoSequences(nn.Module):
    """Words and entities attend to both; each has projections of its own for queries, as in LUKE."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.of_words, self.of_entities, self.kv = (nn.Linear(d_model, size * d_model) for size in (1, 1, 2))

    def forward(self, hidden_states: Tensor, entity_hidden_states: Tensor) -> Tensor:
        both = torch.cat((hidden_states, entity_hidden_states), 1)
        k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.kv(both).chunk(2, -1))
        q = [
            made(each).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for made, each in ((self.of_words, hidden_states), (self.of_entities, entity_hidden_states))
        ]
        scores = torch.cat([each @ k.mT for each in q], 2) / k.shape[-1] ** 0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_no_mask_is_found_in_sequences_that_ask_together() -> None:
    found = masks_of(analyze(next(invocations(TwoSequences, args={})), masks=True))
    assert all(each.kind != "violation" for each in found), [each.message for each in found]


class HeadsLast(nn.Module):
    """The mask is (batch, queries, keys, heads), True at hidden keys; scores are written over."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv = num_heads, nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)) for each in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bihd,bjhd->bijh", q, k) / q.shape[-1] ** 0.5
        scores.masked_fill_(mask, -torch.inf)
        return torch.einsum("bijh,bjhd->bihd", scores.softmax(2), v).flatten(2)


def test_a_mask_that_has_its_heads_last_is_found_and_judged() -> None:
    call = next(invocations(HeadsLast, args={}))
    batch, tokens, _ = call.arguments["x"].shape
    assert call.arguments["mask"].shape == (batch, tokens, tokens, call.sizes["heads"])
    found = masks_of(analyze(call, masks=True))
    assert "mask hides exactly the keys that it blocks; True in mask means blocked" in [each.message for each in found]


def causal_scores(x: Tensor) -> Tensor:
    later = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
    return (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(later, -torch.inf)


def causal_where_a_mask_is_given(x: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = x @ x.mT / x.shape[-1] ** 0.5 if mask is None else causal_scores(x)
    return scores.softmax(-1) @ x


def causal_and_hiding(x: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = causal_scores(x)
    scores = scores if mask is None else scores.masked_fill(mask[:, None] == 0, -torch.inf)
    return scores.softmax(-1) @ x


def causal_with_an_added_one(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return (causal_scores(x) + (0 if mask is None else (mask[:, None] == 0))).softmax(-1) @ x


def causal_with_a_factor(x: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = causal_scores(x)
    if mask is not None:
        scores = torch.where(scores == -torch.inf, scores, scores * (mask[:, None] != 0))
    return scores.softmax(-1) @ x


def causal_with_a_number_of_each_query(x: Tensor, mask: Tensor | None = None) -> Tensor:
    lowered = 0 if mask is None else (mask[:, :, None] == 0) * -4.0
    return (causal_scores(x) + lowered).softmax(-1) @ x


def causal_in_any_case(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """What is handed over is looked at, and not read."""
    assert mask is None or mask.ndim > 0
    return causal_scores(x).softmax(-1) @ x


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (causal_with_a_number_of_each_query, "violation"),
        (causal_in_any_case, "design"),
        (causal_where_a_mask_is_given, "design"),
        (causal_and_hiding, "holds"),
        (causal_with_an_added_one, "violation"),
        (causal_with_a_factor, "violation"),
    ],
)
def test_a_mask_that_is_read_and_hides_nothing_is_no_flag(function: Any, kind: str) -> None:
    found = masks_of(analyze(of_x(function, masks=("mask",)), masks=True))
    assert kind in {each.kind for each in found}
    assert ("violation" in {each.kind for each in found}) == (kind == "violation")


class OfEachToken(nn.Module):
    """A mask with an axis of one behind, which tokens are multiplied by as well."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv = num_heads, nn.Linear(d_model, 3 * d_model)

    def seen(self, mask: Tensor) -> Tensor:
        return mask[:, None].mT != 0

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~self.seen(mask), -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) * mask


class OfEachTokenAsQuery(OfEachToken):
    def seen(self, mask: Tensor) -> Tensor:
        return mask[:, None] != 0


class OfEachTokenInOutputs(OfEachToken):
    def seen(self, mask: Tensor) -> Tensor:
        return torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool)


def of_each_token(kind: Any) -> list[Finding]:
    call = next(invocations(kind, args={}))
    assert call.arguments["mask"].shape == (*call.arguments["x"].shape[:2], 1)
    return masks_of(analyze(call, masks=True))


def test_a_mask_with_an_axis_of_one_behind_is_found_and_judged() -> None:
    messages = [each.message for each in of_each_token(OfEachToken)]
    assert any(each.startswith("mask hides exactly the keys that it blocks") for each in messages)


@pytest.mark.parametrize("kind", [OfEachTokenAsQuery, OfEachTokenInOutputs])
def test_a_mask_with_an_axis_of_one_behind_has_to_hide_keys(kind: Any) -> None:
    assert [each.property for each in of_each_token(kind) if each.kind == "violation"] == ["mask-argument"]


def sees_what_came_before(x: Tensor) -> Tensor:
    later = torch.ones(x.shape[1], x.shape[1]).triu() == 1
    return (x @ x.mT / 8**0.5).masked_fill(later, -1e9).softmax(-1) @ x


@pytest.mark.parametrize("tokens", [2, 4])
def test_a_query_whose_keys_are_all_blocked_by_a_large_number_sees_none(tokens: int) -> None:
    call = tokens_call(sees_what_came_before, drawn(2, tokens, 8, seed=0))
    (found,) = [each for each in masks_of(analyze(call)) if each.kind == "violation"]
    assert found.message.endswith("a query does not see itself: it sees what is 1 or more positions before it")


def largest_score_taken_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The largest comes with its place, which nothing reads."""
    earlier = torch.ones(q.shape[-2], k.shape[-2]).tril(-1) == 1
    scores = (q @ k.mT / 2).masked_fill(earlier, -torch.inf)
    return (scores - scores.max(-1, keepdim=True).values).softmax(-1) @ v


def test_a_mask_is_judged_where_the_place_of_the_largest_score_is_known_and_not_read() -> None:
    (found,) = analyze(of_q_k_v(largest_score_taken_out)).violations
    assert found.property == "mask-pattern"


def all_but_the_last_are_keys(x: Tensor) -> Tensor:
    return (x @ x[:, :-1].mT / 8**0.5).softmax(-1) @ x[:, :-1]


def test_a_last_token_that_is_no_key_is_no_mask() -> None:
    (found,) = [each for each in masks_of(analyze(of_x(all_but_the_last_are_keys))) if each.property == "mask-pattern"]
    assert (found.kind, found.message) == ("absent", "none of its own: every query sees every key")


def below_all_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As BERT's mask is where it hides every key."""
    return (q @ k.mT / 2 - 10_000).softmax(-1) @ v


def test_a_large_number_that_is_added_to_every_score_blocks_none() -> None:
    assert not analyze(of_q_k_v(below_all_scores)).violations


def itself_where_it_sees_no_other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As in Reformer: the number that hides a token from itself is not the one that hides what comes later."""
    scores = (q @ k.mT / 2).masked_fill(torch.eye(q.shape[-2]) == 1, -5e4)
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) == 1, -torch.inf).softmax(-1) @ v


def test_a_key_that_is_blocked_may_be_read_where_no_other_is_left() -> None:
    found = {each.property: each.kind for each in masks_of(analyze(of_q_k_v(itself_where_it_sees_no_other)))}
    assert "violation" not in found.values()
    assert found["mask-pattern"] == "design"


def test_a_mask_beside_which_a_token_always_sees_itself_hides_all_others() -> None:
    def of_nodes(x: Tensor, adj: Tensor | None = None, *, loops: bool = True) -> Tensor:
        scores = x @ x.mT / x.shape[-1] ** 0.5
        if adj is not None:
            edges = adj | torch.eye(x.shape[1], dtype=torch.bool) if loops else adj | adj.roll(1, -1)
            scores = scores.masked_fill(~edges, -torch.inf)
        return scores.softmax(-1) @ x

    found = masks_of(analyze(of_x(of_nodes, masks=("adj",)), masks=True))
    assert "violation" not in {each.kind for each in found}
    assert any(each.message.endswith("a token sees itself all the same") for each in found)
    found = masks_of(analyze(of_x(functools.partial(of_nodes, loops=False), masks=("adj",)), masks=True))
    assert "violation" in {each.kind for each in found}


def test_scores_less_their_maximum_are_not_replaced_by_zero() -> None:
    """Of tokens that are their own queries and keys, each is most like itself, whatever the tokens are."""

    def less_their_maximum(x: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1) @ x

    assert analyze(of_x(less_their_maximum)).violations == []


def pooled(x: Tensor, mask: Tensor | None = None, *, is_read: bool = True, before: bool = True) -> Tensor:
    """One learned query; values are multiplied by weights and summed, without a product of matrices."""
    scores = x @ drawn(8, 1, seed=3) / 8**0.5
    if mask is not None and before and is_read:
        scores = scores.masked_fill(~mask[..., None], -torch.inf)
    weights = scores.softmax(1)
    if mask is not None and not is_read:
        weights[mask] == 0  # noqa: B015
    elif mask is not None and not before:
        weights = weights * mask[..., None]
    return (x * weights).sum(1)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({}, ("holds", "mask-form")),
        ({"is_read": False}, ("violation", "mask-argument")),
        ({"before": False}, ("violation", "weights-sum-to-one")),
    ],
    ids=["before the softmax", "compared with", "after the softmax"],
)
def test_the_mask_of_a_pooling_is_judged(how: dict[str, bool], found: tuple[str, str]) -> None:
    analysis = analyze(of_x(functools.partial(pooled, **how), masks=("mask",)), masks=True)
    assert found in [(each.kind, each.property) for each in analysis.findings]
    assert [each.property for each in analysis.violations] == [found[1]] * (found[0] == "violation")


def test_a_mask_that_sets_values_to_zero_is_not_judged() -> None:
    def of_real_tokens(x: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = (x @ drawn(8, 1, seed=3) / 8**0.5).softmax(1)
        return ((x if mask is None else x * mask[..., None]) * weights).sum(1)

    found = masks_of(analyze(of_x(of_real_tokens, masks=("mask",)), masks=True))
    assert "violation" not in {each.kind for each in found}


def of_two_axes(x: Tensor, keep: Tensor) -> Tensor:
    q, k, v = (split(x) for _ in range(3))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep.bool()[:, None, None], -torch.inf)
    return joined(scores.softmax(-1) @ v).reshape(x.shape)


def test_a_mask_that_has_to_be_given_has_no_more_axes_than_scores() -> None:
    call = next(invocations(of_two_axes, args={}))
    assert call.arguments["keep"].ndim == 2
    analysis = analyze(call, masks=True)
    assert analysis.violations == []
    (masked,) = [each.text for each in step_results(analysis.findings) if each.step == "masked"]
    assert masked == "keep hides exactly the keys that it blocks; True in keep means allowed"


def test_lengths_that_are_given_as_none_are_told() -> None:
    def pooled(q: Tensor, k: Tensor, v: Tensor, valid_lens: Tensor | None) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v

    call = of_q_k_v(pooled)
    call.arguments["valid_lens"] = None
    messages = [each.message for each in analyze(call, masks=True).findings if each.kind == "open"]
    assert messages == ["valid_lens: given as None, not exercised"]


def of_steep_scores(blocked: float) -> Analysis:
    """Of queries and keys so long that some weights are 0 by their scores alone."""

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q @ k.mT / 2
        return (scores if mask is None else scores.masked_fill(~mask, blocked)).softmax(-1) @ v

    call = heads_call(attention, *(6 * drawn(2, 2, 3, 4, seed=seed) for seed in range(3)))
    call.masks = ["mask"]
    return analyze(call, masks=True)


def test_a_key_whose_weight_is_0_by_its_score_is_not_hidden_by_a_mask() -> None:
    assert {each.kind for each in masks_of(of_steep_scores(-torch.inf))} == {"absent", "holds"}
    assert "violation" in {each.kind for each in masks_of(of_steep_scores(-20.0))}


def with_a_mask_of_times(x: Tensor, mask: Tensor, time_mask: Tensor) -> Tensor:
    """Of padding that asks all scores are the same, whatever else is hidden."""
    scores = (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(~mask, -1e9)
    return torch.where(time_mask[..., None], -1e9, scores).softmax(-1) @ x


def test_a_query_all_of_whose_keys_another_mask_hides_tells_nothing() -> None:
    call = of_x(with_a_mask_of_times)
    padding = torch.arange(4) < torch.tensor([[0], [2]])
    call.arguments |= {"mask": torch.ones(4, 4, dtype=torch.bool).tril(), "time_mask": padding}
    call.masks = ["mask", "time_mask"]
    found = [each for each in masks_of(analyze(call, masks=True)) if "time_mask" not in each.message]
    assert ("holds", "mask-form") in {(each.kind, each.property) for each in found}
    assert not [each for each in found if each.kind == "violation"]


def test_a_call_that_blocks_every_key_of_every_query_tells_nothing() -> None:
    def before_any_picture(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = torch.zeros(3, 3, dtype=torch.bool)
        weights = (q @ k.mT / 2).masked_fill(~keys, -torch.finfo(q.dtype).max).softmax(-1)
        return weights.masked_fill(~keys.any(-1, keepdim=True), 0.0) @ v

    analysis = analyze(of_q_k_v(before_any_picture))
    assert not {each.property for each in analysis.violations} & {"weights-kept", "mask-pattern"}
    assert any(each.startswith("every key of every query is blocked") for each in analysis.missing)


LATENTS = drawn(3, 8, seed=90)


def asked_by_latents(x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Latents ask the tokens, and then themselves, as in a Perceiver; their mean is returned."""
    scores = (LATENTS @ x.mT) / 8**0.5
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask[:, None] == 0, -torch.inf)
    y = scores.softmax(-1) @ x
    q, k, v = (y @ (drawn(8, 8, seed=seed) / 3) for seed in (91, 92, 93))
    return ((q @ k.mT / 8**0.5).softmax(-1) @ v).mean(1)


def test_a_mask_of_the_tokens_is_no_mask_of_the_latents() -> None:
    found = analyze(of_x(asked_by_latents, masks=("attention_mask",), tokens=5), masks=True)
    assert (found.violations, found.num_attentions) == ([], 2)
