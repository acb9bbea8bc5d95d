"""Masks of code with several attentions."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from property_cases import Case, drawn, joined, of_x, split

FIRST, SECOND, KEYS = (drawn(8, 8, seed=seed) / 3 for seed in (70, 71, 72))
BLOCKED = -torch.inf


def attended(x: Tensor, matrix: Tensor, hidden: Tensor | None, blocked: float = BLOCKED) -> Tensor:
    scores = split(x @ matrix) @ split(x @ KEYS).mT / 2  # here
    if hidden is not None:
        scores = scores.masked_fill(hidden, blocked)
    return x + joined(scores.softmax(-1) @ split(x)) / 3


def neither_reads_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return attended(attended(x, FIRST, None), SECOND, None)


def the_first_reads_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return attended(attended(x, FIRST, None if mask is None else ~mask), SECOND, None)


def the_second_reads_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return attended(attended(x, FIRST, None), SECOND, None if mask is None else ~mask)


def both_read_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    hidden = None if mask is None else ~mask
    return attended(attended(x, FIRST, hidden), SECOND, hidden)


def all_that_is_kept_is_alike(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Blocked is what is not: of what is left every score is one large number."""
    return attended(attended(x, FIRST, mask, 1e9), SECOND, None)


def a_little_less_in_three_layers(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """What is blocked gets a score that is lower by 1."""
    scores_less = torch.zeros(1, 1, x.shape[1]) if mask is None else -1.0 * ~mask
    for matrix in (FIRST, SECOND, FIRST + SECOND):
        x = added(x, matrix, scores_less)
    return x


def hidden_in_three_layers(x: Tensor, mask: Tensor | None = None) -> Tensor:
    scores_less = torch.zeros(1, 1, x.shape[1]) if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    for matrix in (FIRST, SECOND, FIRST + SECOND):
        x = added(x, matrix, scores_less)
    return x


def added(x: Tensor, matrix: Tensor, scores_less: Tensor) -> Tensor:
    scores = split(x @ matrix) @ split(x @ KEYS).mT / 2  # here
    return x + joined((scores + scores_less).softmax(-1) @ split(x)) / 3


masked = functools.partial(of_x, masks=("mask",))
CASES = [
    Case("mask-argument", neither_reads_it, the_first_reads_it, masked, attentions=2),
    Case("mask-argument", neither_reads_it, the_second_reads_it, masked, attentions=2),
    Case("mask-argument", a_little_less_in_three_layers, hidden_in_three_layers, masked, attentions=3),
    Case("mask-argument", all_that_is_kept_is_alike, both_read_it, masked, attentions=2),
]
