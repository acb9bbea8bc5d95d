"""Packed sequences that are told apart by positions that begin anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, of_x, split
from regard.check.target import Invocation

W_Q, W_K = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (90, 91))


def seen(position_ids: Tensor, mask: Tensor | None, *, of_its_sequence: bool) -> Tensor:
    begun = (position_ids == 0).cumsum(-1)
    tokens = position_ids.shape[-1]
    allowed = torch.ones(tokens, tokens).tril().bool()[None].expand(len(position_ids), -1, -1)
    if of_its_sequence:
        allowed = allowed & (begun[:, :, None] == begun[:, None])
    if mask is not None:
        allowed = (allowed & (mask[:, None] > 0)) | torch.eye(tokens).bool()
    return allowed[:, None]


def read(x: Tensor, allowed: Tensor) -> Tensor:
    scores = split(x @ W_Q) @ split(x @ W_K).mT / 2
    return joined(scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ split(x))


def packed_without_a_mask(x: Tensor, position_ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Packed sequences of a row do not see one another."""
    return read(x, seen(position_ids, mask, of_its_sequence=mask is None))


def packed(x: Tensor, position_ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Packed sequences of a row do not see one another."""
    return read(x, seen(position_ids, mask, of_its_sequence=True))


def packed_where_it_says_so(x: Tensor, position_ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Packed sequences of a row do not see one another if the mask is None."""
    return packed_without_a_mask(x, position_ids, mask)


def with_positions(function: Any) -> Invocation:
    """A call with a position for each token, and a mask that may be left out."""
    call = of_x(function, masks=("mask",))
    places = torch.arange(4).expand(2, 4)
    return replace(call, arguments={**call.arguments, "position_ids": places}, positional=["x", "position_ids"])


CASES = [
    Case("sequences-apart", packed_without_a_mask, right, with_positions, has_line=False)
    for right in (packed, packed_where_it_says_so)
]
