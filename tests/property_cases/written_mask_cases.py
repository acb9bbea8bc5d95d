"""Masks of the caller: what a call hides besides is hidden in a mask of its own."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from property_cases import Case, drawn, joined, of_x, split

QUERIES, KEYS = (drawn(8, 8, seed=seed) / 3 for seed in (80, 81))


def later(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def attended(x: Tensor, hidden: Tensor | None = None, added: Tensor | float = 0.0) -> Tensor:
    scores = split(x @ QUERIES) @ split(x @ KEYS).mT / 2 + added
    hidden = later(x) if hidden is None else hidden
    return joined(scores.masked_fill(hidden, -1e9).softmax(-1) @ split(x))


def hidden_in_the_callers(x: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None:
        mask.logical_or_(later(x))  # here
    return attended(x, mask)


def hidden_in_its_own(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return attended(x, None if mask is None else mask | later(x))


def hidden_in_a_copy(x: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None:
        mask = mask.clone()
        mask |= later(x)
    return attended(x, mask)


def opened_where_all_is_hidden(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """True is hidden; of a row that hides all, the first key is seen: of other rows this changes nothing."""
    if mask is not None:
        mask[..., 0] &= ~mask.all(-1)
    return attended(x, None if mask is None else mask | later(x))


def added_to_the_callers(x: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None:
        mask += torch.zeros(mask.shape[-2:]).masked_fill(later(x), -1e9)  # here
    return attended(x, None) if mask is None else attended(x, later(x) & False, mask)


def as_finite_numbers(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """What is -inf becomes a large number: it hides the same."""
    if mask is not None:
        mask.clamp_(min=-1e9)
    return attended(x, None, 0.0 if mask is None else mask)


masked = functools.partial(of_x, masks=("mask",))

CASES = [
    *(
        Case("mask-kept", hidden_in_the_callers, right, masked)
        for right in (hidden_in_its_own, hidden_in_a_copy, opened_where_all_is_hidden)
    ),
    Case("mask-kept", added_to_the_callers, as_finite_numbers, masked),
]
