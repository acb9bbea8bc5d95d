"""Masks whose axes a line of code names, and masks that look as if they meant two things and mean one."""

from __future__ import annotations

import ast
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from property_cases import of_q_k_v, of_x
from property_cases.two_meaning_cases import keeps_who_is_hidden
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.properties.masks.filled_both_ways import fill_of_the_kept

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Crossed(nn.Module):
    """Cross-attention of several heads."""

    def __init__(self, dim: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def attend(self, x: Tensor, context: Tensor, hidden: Tensor | None) -> Tensor:
        q, k, v = (
            one(each).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one, each in ((self.q, x), (self.k, context), (self.v, context))
        )
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.finfo(scores.dtype).max)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SamplesMeetHeads(Crossed):
    def forward(self, x: Tensor, context: Tensor, context_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, context, None if context_mask is None else ~context_mask[:, None, :])


class SamplesMeetHeadsBesideAMask(Crossed):
    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None = None, memory_padding_mask: Tensor | None = None
    ) -> Tensor:
        hidden = mask
        if memory_padding_mask is not None:
            hidden = memory_padding_mask[:, None, :] if mask is None else mask | memory_padding_mask[:, None, :]
        return self.attend(x, memory, hidden)


class SamplesMeetSamples(Crossed):
    def forward(self, x: Tensor, context: Tensor, context_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, context, None if context_mask is None else ~context_mask[:, None, None, :])


class OfQueriesAndKeys(Crossed):
    """Its mask is not that of one sequence."""

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, context, None if mask is None else ~mask[:, None, :])


class OfThreeAxes(Crossed):
    """context_mask: (batch, queries, keys), True where a token of the context is seen."""

    def forward(self, x: Tensor, context: Tensor, context_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, context, None if context_mask is None else ~context_mask[:, None, :])


class OfAnyNumberOfAxes(Crossed):
    def forward(self, x: Tensor, context: Tensor, context_mask: Tensor | None = None) -> Tensor:
        if context_mask is not None and context_mask.dim() == 2:
            context_mask = context_mask[:, None].expand(-1, x.shape[1], -1)
        return self.attend(x, context, None if context_mask is None else ~context_mask[:, None, :])


@pytest.mark.parametrize("kind", [SamplesMeetHeads, SamplesMeetHeadsBesideAMask])
def test_samples_of_a_mask_of_the_context_do_not_meet_the_heads(kind: type[nn.Module]) -> None:
    assert [each.id for each in check(kind).causes] == ["mask-shape-as-documented"]


@pytest.mark.parametrize("kind", [SamplesMeetSamples, OfQueriesAndKeys, OfThreeAxes, OfAnyNumberOfAxes])
def test_a_mask_of_queries_and_keys_may_be_written_with_two_axes(kind: type[nn.Module]) -> None:
    assert check(kind).verdict != "wrong"


def written_as_numbers(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        added = mask[:, None, None, :].to(q.dtype)
        scores = scores + added.masked_fill(added == 0, -1e9).masked_fill(added == 1, 0.0)
    return scores.softmax(-1) @ v


def turned_before(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        mask = ~mask[:, None, None, :]
        scores = scores.masked_fill(mask, -torch.inf)
    weights = scores.softmax(-1)
    return (weights if mask is None else weights.masked_fill(mask, 0)) @ v


def turned_for_all(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return (q @ k.mT / 2).softmax(-1) @ v
    hidden = torch.logical_not(mask)[:, None, None, :]
    weights = (q @ k.mT / 2).masked_fill(hidden, float("-inf")).softmax(-1)
    return (weights * mask[:, None, None, :]) @ v


def of_nothing_seen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Reads zeros where nothing is seen."""
    if mask is None:
        return (q @ k.mT / 2).softmax(-1) @ v
    weights = (q @ k.mT / 2).masked_fill(~mask[:, None, None, :], -1e9).softmax(-1)
    return weights.masked_fill(~mask.any(-1)[:, None, None, None], 0.0) @ v


@pytest.mark.parametrize(
    "function", [written_as_numbers, turned_before, turned_for_all, of_nothing_seen], ids=lambda each: each.__name__
)
def test_one_meaning_may_be_written_by_both_values(function: object) -> None:
    assert analyze(of_q_k_v(function, masks=("mask",)), masks=True).violations == []


def predicts(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Reconstructs what is hidden."""
    return keeps_who_is_hidden(x, mask)


of_tokens = partial(of_x, masks=("mask",), tokens=5)


def test_what_is_predicted_is_of_the_hidden_tokens() -> None:
    assert [each.property for each in analyze(of_tokens(keeps_who_is_hidden), masks=True).violations] == [
        "mask-one-meaning"
    ]
    assert analyze(of_tokens(predicts), masks=True).violations == []


ROUTED = """
def route(logits, first):
    shares = logits.softmax(-1)
    second = logits.masked_fill(first.bool(), -torch.inf).argmax(-1)
    return shares * first, second
"""


def test_weights_of_another_softmax_are_not_those_of_the_hidden_scores() -> None:
    (function,) = ast.parse(ROUTED).body
    assert isinstance(function, ast.FunctionDef)
    assert fill_of_the_kept(function) == ""
    (turned,) = ast.parse(ROUTED.replace("logits.softmax(-1)", "logits.masked_fill(first, -1e9).softmax(-1)")).body
    assert isinstance(turned, ast.FunctionDef)
    assert fill_of_the_kept(turned) == "first"
