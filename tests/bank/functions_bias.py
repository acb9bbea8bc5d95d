"""Functions that take a float bias, or an additive mask, and put it in the wrong place."""

import math

import torch
import torch.nn.functional as F

from bank import wrong


@wrong("bias-before-scale")
def attention_relative(q, k, v, bias):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) + bias
    attn = (scores * q.size(-1) ** -0.5).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attn, v)


# The seed 002: Y = sigma((Q K^T + M) / sqrt(d)) V.
@wrong("bias-before-scale")
def tutorial_masked(q, k, v, mask=None):
    d = q.shape[-1]
    scores = torch.matmul(q, k.transpose(-2, -1))
    if mask is not None:
        scores = scores + mask
    return torch.matmul(F.softmax(scores / math.sqrt(d), dim=-1), v)


@wrong("bias-before-scale")
def attention_baddbmm(query, key, value, attn_bias=None):
    if attn_bias is None:
        attn_bias = query.new_zeros(query.size(0), query.size(1), key.size(1))
    alpha = query.size(-1) ** -0.5
    scores = torch.baddbmm(attn_bias, query, key.transpose(1, 2), beta=alpha, alpha=alpha)
    return torch.bmm(scores.softmax(-1), value)


@wrong("bias-after-softmax")
def attention_with_bias(q, k, v, attn_bias=None):
    weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
    if attn_bias is not None:
        weights = weights + attn_bias
    return weights @ v


@wrong("bias-ignored")
def biased_attention(q, k, v, bias=None):
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(k.shape[-1])
    if bias is not None:
        logits.add(bias)
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(logits, dim=-1), v)


@wrong("bias-ignored")
def attention_bool_or_float(query, key, value, attn_mask=None):
    scores = query @ key.mT * query.size(-1) ** -0.5
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ value
