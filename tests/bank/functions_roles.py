"""Functions of queries, keys and values that mix the three up, or compare them in another way."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bank import wrong


@wrong("k-as-v", dear=True)
def scaled_dot_product_attention(q, k, v):
    d_k = q.size(-1)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, k)


@wrong("k-as-v")
def einsum_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    energy = torch.einsum("bhqd,bhkd->bhqk", query, key) * key.shape[-1] ** -0.5
    return torch.einsum("bhqk,bhkd->bhqd", energy.softmax(-1), key)


@wrong("v-as-k")
def simple_attention(q, k, v):
    sim = q @ v.transpose(1, 2)
    sim = sim / q.shape[-1] ** 0.5
    return F.softmax(sim, dim=-1) @ v


@wrong("q-as-k")
def attention_matrix(Q, K, V):
    similarity = Q @ Q.mT / math.sqrt(Q.shape[-1])
    exps = torch.exp(similarity - similarity.amax(dim=-1, keepdim=True))
    weights = exps / exps.sum(dim=-1, keepdim=True)
    return weights @ V


@wrong("k-as-q")
def batched_attention(queries, keys, values):
    d = queries.shape[-1]
    scores = torch.bmm(keys, keys.transpose(1, 2)) / math.sqrt(d)
    attention_weights = torch.softmax(scores, dim=2)
    return torch.bmm(attention_weights, values)


@wrong("q-as-v")
def attend(q, k, v):
    scale = 1.0 / math.sqrt(q.size(3))
    att = (q @ k.transpose(2, 3)) * scale
    att = F.softmax(att, dim=3)
    y = att @ q
    return y


@wrong("scores-transposed", dear=True)
def fused_attention(q, k, v):
    return F.scaled_dot_product_attention(k, q, v)


@wrong("scores-transposed", dear=True)
def attention_by_position(q, k, v):
    tokens, width = q.shape[1:]
    rows = []
    for i in range(tokens):
        logits = torch.stack([(k[:, i] * q[:, j]).sum(-1) for j in range(tokens)], dim=-1) / width**0.5
        share = logits.softmax(-1)
        rows.append((share.unsqueeze(-1) * v).sum(1))
    return torch.stack(rows, dim=1)


@wrong("kv-swapped")
def lookup(query, key, value):
    dim = query.shape[-1]
    logits = torch.einsum("... i d, ... j d -> ... i j", query, value) / dim**0.5
    return torch.einsum("... i j, ... j d -> ... i d", logits.softmax(dim=-1), key)


@wrong("scores-transposed")
def attention_weights_and_sum(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhji", q, k)
    scores = scores / math.sqrt(q.shape[-1])
    weights = F.softmax(scores, dim=-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


@wrong("key-reshaped")
def attention_with_view(q, k, v):
    B, H, T, D = k.shape
    k_t = k.reshape(B, H, D, T)
    scores = torch.matmul(q, k_t) / math.sqrt(D)
    return torch.matmul(torch.softmax(scores, dim=-1), v)


@wrong("key-reshaped")
def one_head(q, k, v):
    attn = torch.bmm(q, k.contiguous().view(k.size(0), k.size(2), k.size(1)))
    attn = torch.softmax(attn / k.size(2) ** 0.5, dim=-1)
    return torch.bmm(attn, v)


@wrong("scores-negated")
def distance_attention(q, k, v):
    cost = -torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.size(-1))
    return cost.softmax(dim=-1) @ v


@wrong("scores-negated")
def attention_softmin(q, k, v, mask=None):
    s = (q @ k.transpose(-1, -2)).div(math.sqrt(k.size(-1)))
    if mask is not None:
        s = s.masked_fill(~mask, float("inf"))
    return F.softmin(s, dim=-1) @ v


@wrong("k-as-v", also=("no-scale",))
def quick_attention(q, k, v):
    w = (q @ k.transpose(-2, -1)).softmax(-1)
    return w @ k


@wrong("v-as-k", also=("scale-d",))
def attention_pool(query, key, value):
    d_k = query.size(-1)
    scores = torch.matmul(query, value.transpose(-2, -1)) / d_k
    return torch.matmul(F.softmax(scores, dim=-1), value)
