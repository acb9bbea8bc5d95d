"""Masks of queries and of keys, handed over together."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from property_cases import Case, of_q_k_v


def hides_padded_queries(
    q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    scores = q @ k.mT / 2  # here
    if query_mask is not None and key_mask is not None:
        pairs = query_mask[:, None, :, None] * key_mask[:, None, None]
        scores = scores.masked_fill(~pairs, -torch.inf)
    return scores.softmax(-1) @ v


def hides_padded_keys(
    q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    scores = q @ k.mT / 2
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None], -torch.inf)
    return scores.softmax(-1) @ v


def blanks_padded_queries(
    q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    scores = q @ k.mT / 2
    if query_mask is not None and key_mask is not None:
        pairs = query_mask[:, None, :, None] * key_mask[:, None, None]
        scores = scores.masked_fill(~pairs, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ v


def blanks_weights_of_padded_queries(
    q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """Where a mask of the other polarity hides all keys of a query, its weights are set to zero as well."""
    scores = q @ k.mT / 2
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None], -torch.inf)
    weights = scores.softmax(-1)
    return (weights if query_mask is None else weights.masked_fill(~query_mask[:, None, :, None], 0.0)) @ v


def padded_by_one_mask(q: Tensor, k: Tensor, v: Tensor, q_pad: Tensor | None = None) -> Tensor:
    """True in q_pad is a query of padding."""
    scores = q @ k.mT / 2  # here
    if q_pad is not None:
        scores = scores.masked_fill(q_pad[:, None, :, None], float("-inf"))
    return scores.softmax(-1) @ v


def zeros_for_one_mask(q: Tensor, k: Tensor, v: Tensor, q_pad: Tensor | None = None) -> Tensor:
    """True in q_pad is a query of padding."""
    read = (q @ k.mT / 2).softmax(-1) @ v
    return read if q_pad is None else read.masked_fill(q_pad[:, None, :, None], 0.0)


of_both = partial(of_q_k_v, masks=("query_mask", "key_mask"))
of_one = partial(of_q_k_v, masks=("q_pad",))

CASES = [
    Case("padded-queries-read", hides_padded_queries, hides_padded_keys, of_both),
    Case("padded-queries-read", hides_padded_queries, blanks_padded_queries, of_both),
    Case("padded-queries-read", hides_padded_queries, blanks_weights_of_padded_queries, of_both),
    Case("padded-queries-read", padded_by_one_mask, zeros_for_one_mask, of_one),
]
