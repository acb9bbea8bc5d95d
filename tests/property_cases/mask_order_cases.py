"""Masks of no known pattern: of those that are said to be causal, and of those that hide the next token."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from attention_styles import heads_call
from property_cases import HEADS, WIDTH, Case, drawn, joined, of_module, of_x, split
from regard.check.target import Invocation

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=each) / 3 for each in range(80, 83))


def attended(x: Tensor, allowed: Tensor) -> Tensor:
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    scores = q @ k.mT / q.shape[-1] ** 0.5  # here
    return joined(scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v)


def distances(x: Tensor) -> Tensor:
    """(queries, keys): how far a key comes before its query."""
    places = torch.arange(x.shape[1])
    return places[:, None] - places


def every_third(x: Tensor) -> Tensor:
    far = distances(x)
    return attended(x, ((far >= 0) & (far < 2)) | (far % 3 == 0))


def every_third_before(x: Tensor) -> Tensor:
    far = distances(x)
    return attended(x, (far >= 0) & ((far < 2) | (far % 3 == 0)))


def every_second_on_both_sides(x: Tensor) -> Tensor:
    return attended(x, distances(x) % 2 == 0)


def around_the_circle(x: Tensor) -> Tensor:
    return attended(x, distances(x) % x.shape[1] < 2)


def said_to_be_causal(far: Tensor) -> Tensor:
    """Causal mask with gaps: the token itself, and every second one before it."""
    return (far % 2 == 0) & ((far >= 0) | (far < -3))


def with_gaps(far: Tensor) -> Tensor:
    """Causal mask with gaps: the token itself, and every second one before it."""
    return (far % 2 == 0) & (far >= 0)


def seen_by_its_mask(x: Tensor) -> Tensor:
    return attended(x, said_to_be_causal(distances(x)))


def hidden_by_its_mask(x: Tensor) -> Tensor:
    return attended(x, with_gaps(distances(x)))


def turned_round(far: Tensor) -> Tensor:
    """Causal mask with gaps: the token itself, and every second one before it."""
    return (far % 2 == 0) & (far <= 0)


def seen_by_a_mask_turned_round(x: Tensor) -> Tensor:
    return attended(x, turned_round(distances(x)))


class MemoryInFront(nn.Module):
    """Causal attention with two memory slots of each head, which stand before the tokens."""

    is_mask_behind = False

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.slots = nn.Parameter(torch.randn(2, HEADS, 2, WIDTH // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        k, v = (
            torch.cat((slots.expand(len(x), -1, -1, -1), of_tokens), 2)
            for slots, of_tokens in zip(self.slots, (k, v), strict=True)
        )
        places = (0, 2) if self.is_mask_behind else (2, 0)
        seen = nn.functional.pad(torch.ones(x.shape[1], x.shape[1]).tril(), places, value=1.0)
        scores = q @ k.mT / q.shape[-1] ** 0.5  # here
        return joined(scores.masked_fill(seen == 0, -torch.inf).softmax(-1) @ v)


class MemoryBehindItsMask(MemoryInFront):
    """Causal attention with two memory slots of each head, which stand before the tokens."""

    is_mask_behind = True


def _to_the_keys(q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
    hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(first + 1).bool()
    scores = q @ k.mT / q.shape[-1] ** 0.5  # here
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def said_to_end_together(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The queries are the last tokens of the keys: both are aligned to the right."""
    return _to_the_keys(q, k, v, 0)


def ends_together(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The queries are the last tokens of the keys: both are aligned to the right."""
    return _to_the_keys(q, k, v, k.shape[-2] - q.shape[-2])


def begins_together(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first query stands at the first key, not aligned to the right."""
    return _to_the_keys(q, k, v, 0)


def of_fewer_queries(function: Any) -> Invocation:
    """A call with two queries and five keys."""
    return heads_call(function, drawn(2, 2, 2, 4, seed=0), drawn(2, 2, 5, 4, seed=1), drawn(2, 2, 5, 4, seed=2))


of_seven = functools.partial(of_x, tokens=7)

CASES = [
    Case("mask-pattern", said_to_end_together, ends_together, of_fewer_queries),
    Case("mask-pattern", said_to_end_together, begins_together, of_fewer_queries),
    Case("mask-pattern", seen_by_a_mask_turned_round, hidden_by_its_mask, of_x),
    Case("mask-pattern", every_third, every_third_before, of_seven),
    Case("mask-pattern", every_third, every_second_on_both_sides, of_seven),
    Case("mask-pattern", every_third, around_the_circle, of_seven),
    Case("mask-pattern", seen_by_its_mask, hidden_by_its_mask, functools.partial(of_x, tokens=5)),
    Case("mask-pattern", MemoryBehindItsMask, MemoryInFront, of_module),
]
