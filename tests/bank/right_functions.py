"""Functions of (q, k, v) that are the definition, each computed in a way of its own."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bank import right


@right("right")
def attention_in_four_lines(q, k, v):
    d_k = q.size(-1)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(weights, v)


@right("right")
def non_causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q / math.sqrt(q.size(-1))) @ k.mT).softmax(-1) @ v


@right("right")
def einsum_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
    attn = sim.softmax(dim=-1)
    return torch.einsum("b h i j, b h j d -> b h i d", attn, v)


@right("right")
def baddbmm_attention(query, key, value):
    batch, heads, tokens, width = query.shape
    query = query.reshape(batch * heads, tokens, width)
    key = key.reshape(batch * heads, -1, width)
    value = value.reshape(batch * heads, key.shape[1], -1)
    nothing = torch.empty(batch * heads, tokens, key.shape[1], dtype=query.dtype, device=query.device)
    scores = torch.baddbmm(nothing, query, key.transpose(1, 2), beta=0, alpha=1 / math.sqrt(width))
    hidden = torch.bmm(scores.softmax(-1), value)
    return hidden.reshape(batch, heads, tokens, -1)


@right("right")
def looping_attention(q, k, v):
    samples = []
    for b in range(q.shape[0]):
        heads = []
        for h in range(q.shape[1]):
            rows = []
            for i in range(q.shape[2]):
                scores = torch.stack([torch.dot(q[b, h, i], k[b, h, j]) for j in range(k.shape[2])])
                alpha = torch.softmax(scores / math.sqrt(q.shape[3]), dim=0)
                rows.append(sum(alpha[j] * v[b, h, j] for j in range(k.shape[2])))
            heads.append(torch.stack(rows))
        samples.append(torch.stack(heads))
    return torch.stack(samples)


@right("right")
def exponentials_over_their_sum(q, k, v):
    scores = q @ k.mT / math.sqrt(k.shape[-1])
    numerator = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return (numerator @ v) / numerator.sum(dim=-1, keepdim=True)


@right("right")
def through_logsumexp(q, k, v):
    logits = (q @ k.transpose(-1, -2)).div(k.size(-1) ** 0.5)
    log_weights = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    return log_weights.exp() @ v


@right("right")
def log_softmax_then_exp(Q, K, V):
    S = Q.matmul(K.transpose(2, 3)) / K.shape[3] ** 0.5
    return S.log_softmax(3).exp().matmul(V)


@right("right")
def online_softmax(q, k, v, block=2):
    scale = 1.0 / math.sqrt(q.shape[-1])
    top = torch.full(q.shape[:-1], float("-inf"), dtype=q.dtype, device=q.device)
    total = torch.zeros_like(top)
    acc = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    for start in range(0, k.shape[-2], block):
        s = (q @ k[..., start : start + block, :].transpose(-1, -2)) * scale
        new_top = torch.maximum(top, s.amax(dim=-1))
        p = torch.exp(s - new_top[..., None])
        shrink = torch.exp(top - new_top)
        total = total * shrink + p.sum(dim=-1)
        acc = acc * shrink[..., None] + p @ v[..., start : start + block, :]
        top = new_top
    return acc / total[..., None]


@right("right")
def queries_in_chunks(q, k, v, chunk_size=3):
    outputs = []
    for part in q.split(chunk_size, dim=-2):
        probabilities = torch.softmax(part @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        outputs.append(probabilities @ v)
    return torch.cat(outputs, dim=-2)


@right("right")
def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@right("right")
def queries_scaled_first(q, k, v):
    q = q * (q.shape[-1] ** -0.5)
    return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v


@right("right")
def fourth_root_on_each_side(q, k, v):
    d = q.shape[-1]
    weight = torch.softmax((q * d**-0.25) @ (k * d**-0.25).transpose(-1, -2), dim=-1)
    return weight @ v


@right("right")
def keys_to_the_left(q, k, v):
    scores = k @ q.transpose(-2, -1)  # (..., keys, queries)
    weights = torch.softmax(scores / math.sqrt(k.shape[-1]), dim=-2)
    return weights.transpose(-2, -1) @ v


@right("right")
def by_distances(q, k, v):
    # q . k = (|q|^2 + |k|^2 - |q - k|^2) / 2, and |q|^2 is the same for a whole row
    apart = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
    scores = (k.square().sum(-1).unsqueeze(-2) - apart) / 2
    return torch.softmax(scores / q.shape[-1] ** 0.5, -1) @ v


@right("right")
def broadcast_and_sum(q, k, v):
    scores = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) / math.sqrt(q.shape[-1])
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return (weights[..., None] * v[..., None, :, :]).sum(-2)


@right("right")
def mapped_over_batch_and_heads(q, k, v):
    def one(q, k, v):
        return torch.softmax(q @ k.t() / math.sqrt(q.shape[1]), dim=1) @ v

    return torch.vmap(torch.vmap(one))(q, k, v)


@right("right")
def no_heads_bmm(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.bmm(query, key.permute(0, 2, 1)) / key.shape[2] ** 0.5
    return torch.bmm(torch.softmax(scores, dim=2), value)


@right("right")
def scale_as_an_option(q, k, v, scale=None):
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    return torch.softmax(scale * (q @ k.transpose(-2, -1)), dim=-1) @ v


@right("right")
def softmax_in_single_precision(query, key, value):
    # As most published models do it: exact in half and single precision, 1e-8 off in double precision.
    weights = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)


class _WithOwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (grad,) = grads
        q, k, v, p = ctx.saved_tensors
        dp = grad @ v.transpose(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad


@right("right")
def own_backward(q, k, v):
    return _WithOwnBackward.apply(q, k, v)


@right("right")
class ScaledDotProductAttention(nn.Module):
    def __init__(self, attn_dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(attn_dropout)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / q.size(-1) ** 0.5, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        return torch.matmul(self.dropout(self.softmax(attn)), v)
