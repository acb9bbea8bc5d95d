"""Functions of (q, k, v) and a mask or a causal flag: right, with True = may attend, or by another convention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bank import right


@right("right")
def fills_minus_infinity(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return scores.softmax(-1) @ v


@right("right")
def fills_minus_a_billion(query, key, value, mask):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    scores = scores.masked_fill(~mask, -1e9)
    return torch.matmul(torch.softmax(scores, dim=-1), value)


@right("right")
def fills_the_smallest_number(q, k, v, attn_mask=None):
    sim = torch.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5
    if attn_mask is not None:
        sim.masked_fill_(~attn_mask, torch.finfo(sim.dtype).min)
    return torch.einsum("...ij,...jd->...id", sim.softmax(-1), v)


@right("right")
def where_allowed(q, k, v, mask=None):
    logits = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        logits = torch.where(mask.bool(), logits, torch.full_like(logits, -torch.inf))
    return F.softmax(logits, dim=-1) @ v


@right("right")
def adds_the_logarithm(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1])
    if mask is not None:
        scores = scores + mask.to(scores.dtype).log()  # log 1 = 0, log 0 = -inf
    return torch.softmax(scores, dim=-1) @ v


@right("right")
def masked_softmax_by_hand(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1])
    exps = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
    if mask is not None:
        exps = exps * mask
    return exps / exps.sum(dim=-1, keepdim=True) @ v


@right("right")
def renormalised_after_the_mask(q, k, v, mask=None):
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1]), dim=-1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True)
    return weights @ v


@right("right")
def zeros_where_nothing_is_allowed(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
    return torch.nan_to_num(torch.softmax(scores, dim=-1)) @ v


@right("right")
def fused_with_a_mask(q, k, v, attn_mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


@right("convention", says="first")
def fused_with_both(q, k, v, attn_mask=None, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=0.0, is_causal=is_causal)


@right("right")
def causal_by_triu(q, k, v):
    T = q.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.triu(torch.ones(T, T, dtype=torch.bool, device=q.device), diagonal=1)
    return torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ v


@right("right")
def causal_flag(q, k, v, causal=False):
    T = q.shape[-2]
    wei = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        tril = torch.tril(torch.ones(T, T, device=q.device))
        wei = wei.masked_fill(tril == 0, float("-inf"))
    return F.softmax(wei, dim=-1) @ v


@right("right")
def causal_with_a_table_of_minus_infinity(q, k, v):
    n = q.shape[-2]
    table = torch.full((n, n), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + table, dim=-1) @ v


@right("right")
def causal_by_growing_prefix(q, k, v):
    rows = []
    for i in range(q.shape[-2]):
        seen = slice(0, i + 1)
        s = (q[..., i : i + 1, :] @ k[..., seen, :].transpose(-1, -2)) / math.sqrt(q.shape[-1])
        rows.append(torch.softmax(s, dim=-1) @ v[..., seen, :])
    return torch.cat(rows, dim=-2)


@right("right")
def causal_and_a_mask(q, k, v, mask=None, is_causal=True):
    position = torch.arange(q.shape[-2], device=q.device)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = torch.where(position[:, None] >= position[None, :], scores, -torch.inf)
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


@right("right")
def causal_for_the_last_queries(q, k, v, causal=True):
    queries, keys = q.shape[-2], k.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        may = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        scores = scores.masked_fill(~may, -torch.inf)
    return scores.softmax(-1) @ v


@right("convention", says="first")
def causal_for_the_first_queries(q, k, v, causal=True):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        may = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~may, -torch.inf)
    return scores.softmax(-1) @ v


@right("convention", says="blocked")
def true_is_blocked(q, k, v, mask=None):
    attn = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5
    if mask is not None:
        attn = attn.masked_fill(mask, -1e9)
    return attn.softmax(dim=-1) @ v


@right("convention", says="blocked")
def ones_are_blocked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    logits = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(k.shape[-1])
    if mask is not None:
        logits = logits + mask * -1e9
    return torch.matmul(torch.softmax(logits, -1), v)


@right("convention", says="added to the scores")
def additive_mask(query, key, value, attention_mask=None):
    attention_scores = torch.matmul(query, key.transpose(-1, -2))
    attention_scores = attention_scores / math.sqrt(query.shape[-1])
    if attention_mask is not None:
        attention_scores = attention_scores + attention_mask
    return torch.matmul(torch.softmax(attention_scores, dim=-1), value)


@right("convention", says="1 in its mask means allowed")
def ones_are_kept(query, key, value, mask=None):
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + (1.0 - mask) * torch.finfo(scores.dtype).min
    return scores.softmax(-1) @ value


@right("convention", says="blocked")
def padding_is_true(q, k, v, key_padding_mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
    return scores.softmax(-1) @ v


@right("convention", says="shape (batch, keys)")
def one_mark_per_key(q, k, v, attention_mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if attention_mask is not None:
        kept = attention_mask.to(torch.bool)[:, None, None, :]  # (batch, keys)
        scores = scores.masked_fill(~kept, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


@right("convention", says="no heads")
def valid_lengths(queries, keys, values, valid_lens=None):
    scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
    if valid_lens is not None:
        position = torch.arange(keys.shape[1], device=keys.device)
        scores = torch.where(position < valid_lens[:, None, None], scores, -1e6)
    return torch.bmm(torch.softmax(scores, dim=-1), values)
