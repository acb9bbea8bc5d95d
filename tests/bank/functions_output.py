"""Functions that compute weights and then use them in another way, or not at all."""

import math

import torch
import torch.nn.functional as F

from bank import wrong


@wrong("weights-transposed", dear=True)
def attention_sum(q, k, v):
    weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
    return weights.transpose(-2, -1) @ v


@wrong("weights-transposed")
def attention_indices(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhij,bhid->bhjd", scores.softmax(dim=-1), v)


@wrong("output-v", dear=True)
def attention_stub(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    weights = torch.softmax(scores, dim=-1)
    return v + 0.0 * weights.sum(dim=-1, keepdim=True)


@wrong("output-v")
def attention_row_sums(q, k, v, mask=None):
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(2))
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(dim=-1)
    return torch.einsum("bij,bid->bid", weights, v)


@wrong("output-mean", dear=True)
def attention_average(q, k, v):
    weights = torch.ones(q.size(-2), k.size(-2), dtype=q.dtype, device=q.device)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights @ v


@wrong("output-mean")
def causal_average(q, k, v):
    T = q.size(1)
    wei = torch.zeros(q.size(0), T, T, dtype=q.dtype, device=q.device)
    tril = torch.tril(torch.ones(T, T, device=q.device))
    wei = wei.masked_fill(tril == 0, float("-inf"))
    return F.softmax(wei, dim=-1) @ v


@wrong("weights-transposed", also=("no-scale",))
def attention_columns(q, k, v):
    attn = torch.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
    return torch.bmm(attn.transpose(1, 2), v)
