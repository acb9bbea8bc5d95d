"""Masks of which one line takes 1 for a key that is seen, and another line for a hidden one."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from property_cases import Case, of_q_k_v, of_x


def _seeing(x: Tensor, seen: Tensor) -> Tensor:
    """Self-attention of one head to the tokens that are seen."""
    scores = x @ x.mT / x.shape[-1] ** 0.5  # here
    return scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1) @ x


def blanks_who_is_seen(x: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        return x + _seeing(x, mask)
    x = x + _seeing(x, mask)
    return x.masked_fill(mask[..., None], 0)


def blanks_who_is_hidden(x: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return blanks_who_is_seen(x)
    return (x + _seeing(x, mask)).masked_fill(~mask[..., None], 0)


def keeps_who_is_hidden(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return blanks_who_is_seen(x) if mask is None else (x + _seeing(x, ~mask)) * mask[..., None]


def keeps_who_is_seen(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return blanks_who_is_seen(x) if mask is None else (x + _seeing(x, mask)) * mask[..., None]


def _by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5 + bias[:, None, None]).softmax(-1) @ v


def a_kernel_for_all_ones(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None or torch.all(mask == 1):
        return F.scaled_dot_product_attention(q, k, v)  # here
    return _by_hand(q, k, v, mask * -1e9)


def a_kernel_where_all_are_seen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None or torch.all(mask == 1):
        return F.scaled_dot_product_attention(q, k, v)
    return _by_hand(q, k, v, (1 - mask.to(q.dtype)) * -1e9)


def a_kernel_unless_one_is_false(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None and not bool(mask.all()):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(mask[:, None, None], torch.finfo(q.dtype).min).softmax(-1) @ v
    return F.scaled_dot_product_attention(q, k, v)  # here


def a_kernel_unless_one_is_hidden(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None and bool(mask.any()):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(mask[:, None, None], torch.finfo(q.dtype).min).softmax(-1) @ v
    return F.scaled_dot_product_attention(q, k, v)


def competes_for_the_hidden(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, over_queries: bool = False
) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5  # here
    if mask is not None:
        mask = mask[:, None, None, :]
        scores = scores.masked_fill(mask, -torch.finfo(scores.dtype).max)
    if not over_queries:
        return scores.softmax(-1) @ v
    weights = scores.softmax(-2)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return F.normalize(weights, p=1, dim=-1) @ v


def competes_for_the_seen(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, over_queries: bool = False
) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        mask = mask[:, None, None, :]
        scores = scores.masked_fill(~mask, -torch.finfo(scores.dtype).max)
    if not over_queries:
        return scores.softmax(-1) @ v
    weights = scores.softmax(-2)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return F.normalize(weights, p=1, dim=-1) @ v


def keeps_the_weights_of_the_hidden(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, hard: bool = False
) -> Tensor:
    scores = q @ k.mT / 2  # here
    if mask is not None:
        scores = torch.where(mask[:, None, None, :] == 1, -1e9, scores)
    weights = torch.softmax(scores, dim=-1)
    if hard and mask is not None:
        weights = weights * mask.unsqueeze(1).unsqueeze(1)
    return weights @ v


def keeps_the_weights_of_the_seen(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, hard: bool = False
) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        scores = torch.where(mask[:, None, None, :] == 0, -1e9, scores)
    weights = torch.softmax(scores, dim=-1)
    if hard and mask is not None:
        weights = weights * mask.unsqueeze(1).unsqueeze(1)
    return weights @ v


of_tokens = partial(of_x, masks=("mask",), tokens=5)
with_mask = partial(of_q_k_v, masks=("mask",))
CASES = [
    Case("mask-one-meaning", blanks_who_is_seen, blanks_who_is_hidden, of_tokens),
    Case("mask-one-meaning", keeps_who_is_hidden, keeps_who_is_seen, of_tokens),
    Case("mask-one-meaning", a_kernel_for_all_ones, a_kernel_where_all_are_seen, with_mask),
    Case("mask-one-meaning", a_kernel_unless_one_is_false, a_kernel_unless_one_is_hidden, with_mask),
    Case("mask-one-meaning", competes_for_the_hidden, competes_for_the_seen, with_mask),
    Case("mask-one-meaning", keeps_the_weights_of_the_hidden, keeps_the_weights_of_the_seen, with_mask),
]
