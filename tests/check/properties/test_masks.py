"""Masks that are handed over: which findings they give beside those of each property's case."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from property_cases import of_q_k_v, of_x
from property_cases.mask_cases import as_many_as_its_window, more_than_its_window, square_call
from regard.check.properties.analysis import Analysis, analyze
from regard.check.properties.finding import Finding
from regard.check.target import invocations


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


def all_but_the_last_are_keys(x: Tensor) -> Tensor:
    return (x @ x[:, :-1].mT / 8**0.5).softmax(-1) @ x[:, :-1]


def test_a_last_token_that_is_no_key_is_no_mask() -> None:
    (found,) = [each for each in masks_of(analyze(of_x(all_but_the_last_are_keys))) if each.property == "mask-pattern"]
    assert (found.kind, found.message) == ("absent", "none of its own: every query sees every key")
