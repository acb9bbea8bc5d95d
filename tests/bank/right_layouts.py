"""Functions of (q, k, v) that are the definition on other axes, or that return more than the output."""

import math

import torch
import torch.nn.functional as F

from bank import right


@right("convention", says="(batch, tokens, heads, width)")
def heads_third_einsum(q, k, v, causal=False):
    scores = torch.einsum("bthd,bshd->bhts", q, k / math.sqrt(q.shape[-1]))
    if causal:
        later = torch.triu(torch.full((q.shape[1], q.shape[1]), -10000.0, device=q.device), 1)
        scores = scores + later.to(dtype=scores.dtype)
    return torch.einsum("bhts,bshd->bthd", torch.softmax(scores, dim=-1), v)


@right("convention", says="(batch, tokens, heads, width)")
def heads_third_transposed(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()


@right("convention", says="(tokens, batch, heads, width)")
def tokens_first(query, key, value):
    scores = torch.einsum("ibhd,jbhd->ijbh", query, key) * (1 / math.sqrt(query.shape[-1]))
    attn = scores.softmax(dim=1)
    return torch.einsum("ijbh,jbhd->ibhd", attn, value)


@right("convention", says="(tokens, batch, heads, width)")
def tokens_first_with_mask(query, key, value, mask=None):
    scores = torch.einsum("ibhd,jbhd->ijbh", query, key) / math.sqrt(query.shape[-1])
    if mask is not None:  # (queries, keys, batch, heads)
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.einsum("ijbh,jbhd->ibhd", scores.softmax(dim=1), value)


@right("convention", says="tokens first")
def tokens_first_no_heads(q, k, v):
    scores = torch.einsum("tbd,sbd->bts", q, k) / q.shape[2] ** 0.5
    return torch.einsum("bts,sbd->tbd", F.softmax(scores, dim=2), v)


@right("convention", says="no batch")
def one_sentence(q, k, v):
    _, d_k = q.shape
    similarity = torch.mm(q, k.t())
    return torch.mm(F.softmax(similarity / d_k**0.5, dim=1), v)


@right("convention", says="channels first")
def channels_first(q, k, v):
    # (batch, channels, positions), as in convolutional networks
    weight = torch.einsum("bct,bcs->bts", q, k) * (q.shape[1] ** -0.5)
    return torch.einsum("bts,bcs->bct", weight.softmax(dim=-1), v)


@right("convention", says="channels first")
def channels_before_positions(q, k, v):
    # (batch, heads, channels, positions)
    attn = (q.transpose(-2, -1) @ k).div(q.shape[-2] ** 0.5).softmax(dim=-1)
    return v @ attn.transpose(-2, -1)


@right("right")
def output_and_weights(query, key, value, mask=None, dropout=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


@right("convention", says="element 1")
def weights_and_output(q, k, v):
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
    return weights, weights @ v


@right("convention", says="returns (batch, tokens, heads, width)")
def heads_go_back(query, key, value, attention_mask=None, scaling=None):
    # takes (B, H, T, D) and hands back (B, T, H, D), and the weights
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask[:, :, :, : key.shape[-2]]
    weights = F.softmax(weights, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


@right("convention", says="returns (batch, tokens, heads * width)")
def merged_in_the_end(q, k, v):
    # takes (B, H, T, D) and hands back (B, T, H * D)
    out = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v
    return out.transpose(1, 2).flatten(2)


@right("right")
def fewer_key_heads_by_repeat(q, k, v):
    group = q.shape[1] // k.shape[1]
    k = torch.repeat_interleave(k, group, dim=1)
    v = torch.repeat_interleave(v, group, dim=1)
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v
