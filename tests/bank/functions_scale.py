"""Functions of queries, keys and values that scale the scores by another number, or elsewhere."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bank import wrong

HEAD_SIZE = 16


@wrong("no-scale", source="delzac/cntkx#10", dear=True)
def dot_product_attention(query, key, value, mask=None):
    scores = torch.matmul(query, key.transpose(-2, -1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    attn = F.softmax(scores, dim=-1)
    return torch.matmul(attn, value)


@wrong("no-scale", source="huggingface/blog#2893", dear=True)
def next_token_attention(Q, K, V):
    attention_scores = Q @ K.transpose(-1, -2)
    causal = torch.tril(torch.ones(Q.shape[-2], Q.shape[-2], device=Q.device))
    masked_scores = attention_scores.masked_fill(causal == 0, float("-inf"))
    return torch.softmax(masked_scores, dim=-1) @ V


@wrong("scale-d", dear=True)
def scaled_attention(q, k, v):
    d_k = k.size(-1)
    weights = torch.softmax(q @ k.transpose(-2, -1) / d_k, dim=-1)
    return weights @ v


@wrong("scale-d")
def attention_prescaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = q.shape[-1] ** -0.5
    q = q * scale
    sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * scale
    attn = sim.softmax(dim=-1)
    return torch.einsum("b h i j, b h j d -> b h i d", attn, v)


@wrong("scale-d-model", source="lucidrains/vit-pytorch#65")
def heads_attention(q, k, v):
    dim = q.shape[1] * q.shape[-1]
    scale = dim**-0.5
    dots = torch.einsum("bhid,bhjd->bhij", q, k) * scale
    attn = dots.softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attn, v)


# The seed 002: Y = sigma(Q K^T / sqrt(d_model)) V, for each of H heads of width d_k.
@wrong("scale-d-model")
def tutorial_attention(q, k, v):
    d_model = q.shape[1] * q.shape[3]
    similarity = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(d_model)
    return torch.matmul(torch.softmax(similarity, dim=-1), v)


@wrong("scale-d-value")
def attention_value_width(query, key, value):
    d = value.size(-1)
    score = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d)
    return torch.matmul(score.softmax(-1), value)


@wrong("scale-tokens")
def attention_three_axes(q, k, v):
    dim = q.size(1)
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(dim)
    return torch.bmm(F.softmax(scores, dim=-1), v)


@wrong("scale-tokens")
def attention_shape_unpacked(q, k, v, causal=False):
    _, _, d_k, _ = q.shape
    scores = q @ k.mT * (1.0 / math.sqrt(d_k))
    if causal:
        t = scores.size(-1)
        ahead = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    return scores.softmax(dim=-1) @ v


@wrong("scale-heads", source="tenstorrent/tt-metal#56789")
def clip_attention(query, key, value):
    scale = 1.0 / math.sqrt(query.shape[1])
    weights = F.softmax((query * scale) @ key.permute(0, 1, 3, 2), dim=-1)
    return weights @ value


@wrong("scale-batch")
def attention_of_batch(queries, keys, values):
    d = queries.shape[0]
    scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
    return torch.bmm(scores.softmax(dim=-1), values)


@wrong("scale-batch")
def attention_len(q, k, v):
    factor = math.sqrt(len(k))
    return torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / factor, dim=-1).matmul(v)


@wrong("scale-multiplied", source="esceptico/perceiver-io#9", dear=True)
def attention_reciprocal(q, k, v):
    scale = q.shape[-1] ** -0.5
    attention = (q @ k.transpose(-2, -1)) / scale
    return attention.softmax(dim=-1) @ v


@wrong("scale-multiplied")
def attention_times_root(Q, K, V):
    root = torch.sqrt(torch.tensor(Q.shape[-1], dtype=Q.dtype))
    scores = root * torch.einsum("btd,bsd->bts", Q, K)
    return torch.einsum("bts,bsd->btd", F.softmax(scores, -1), V)


@wrong("scale-fourth-root")
def attention_half_scaled(q, k, v):
    scale = q.size(-1) ** -0.25
    weight = torch.einsum("bhtc,bhsc->bhts", q * scale, k)
    weight = torch.softmax(weight, dim=-1)
    return torch.einsum("bhts,bhsc->bhtc", weight, v)


@wrong("scale-half", dear=True)
def attention_split_width(q, k, v):
    half = q.size(-1) // 2
    left = q[..., :half] @ k[..., :half].transpose(-2, -1)
    right = q[..., half:] @ k[..., half:].transpose(-2, -1)
    att = ((left + right) / math.sqrt(half)).softmax(-1)
    return att @ v


@wrong("scale-constant")
def attention_fixed(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / 8.0
    probs = torch.nn.Softmax(dim=-1)(scores)
    return torch.matmul(probs, v)


@wrong("scale-constant")
def attention_config(query, key, value):
    wei = query @ key.transpose(-2, -1) * HEAD_SIZE**-0.5
    wei = F.softmax(wei, dim=-1)
    out = wei @ value
    return out


@wrong("scale-after-softmax", source="FrancescoSaverioZuppichini/ViT#2")
def vit_attention(queries, keys, values):
    energy = torch.einsum("bhqd, bhkd -> bhqk", queries, keys)
    scaling = queries.shape[-1] ** -0.5
    att = F.softmax(energy, dim=-1) * scaling
    return torch.einsum("bhal, bhlv -> bhav", att, values)


@wrong("scale-after-softmax")
def attention_output_scaled(q, k, v):
    out = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)
    return out / math.sqrt(q.shape[-1])


@wrong("scale-floor", dear=True)
def attention_integer_steps(q, k, v):
    d_k = q.size(-1)
    scores = torch.matmul(q, k.transpose(-2, -1)) // math.sqrt(d_k)
    return torch.matmul(F.softmax(scores, dim=-1), v)


# The seed 002 again: Y = sigma((Q K^T + M) / sqrt(d_model)) V.
@wrong("scale-d-model", also=("bias-before-scale",))
def tutorial_masked_attention(q, k, v, mask):
    d_model = q.size(1) * q.size(-1)
    S = (q @ k.transpose(2, 3) + mask) / math.sqrt(d_model)
    return S.softmax(dim=-1) @ v


@wrong("no-scale", also=("softmax-queries",))
def plain_attention(q, k, v):
    scores = torch.bmm(q, k.permute(0, 2, 1))
    attn = F.softmax(scores, dim=1)
    return torch.bmm(attn, v)


@wrong("scale-tokens", also=("mask-weak-fill",))
def decoder_attention(q, k, v):
    n = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(n)
    future = torch.triu(torch.ones(n, n, device=q.device), diagonal=1).bool()
    scores = scores.masked_fill(future, -10.0)
    return torch.softmax(scores, dim=-1) @ v
