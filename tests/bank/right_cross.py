"""Modules that take their keys and values from elsewhere: (x, context) and (q, k, v, mask)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from bank import Projections, right


@right("right")
class FromContext(Projections, names="q_proj k_proj v_proj out_proj"):
    def forward(self, x, context):
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(context).view(B, context.shape[1], self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(context).view(B, context.shape[1], self.num_heads, -1).transpose(1, 2)
        att = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(C // self.num_heads), dim=-1)
        return self.out_proj((att @ v).transpose(1, 2).reshape(B, T, C))


@right("convention", says="its mask has the shape (batch, keys)", dear=True)
class FromContextOrItself(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = query_dim if context_dim is None else context_dim
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k, self.to_v = (nn.Linear(context_dim, inner_dim, bias=False) for _ in range(2))
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        b, h = x.shape[0], self.heads
        q, k, v = (
            t.unflatten(-1, (h, -1)).transpose(1, 2).flatten(0, 1)
            for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        sim = torch.einsum("bid,bjd->bij", q, k) * self.scale
        if mask is not None:  # (batch, keys)
            allowed = mask.flatten(1)[:, None, :].repeat_interleave(h, dim=0)
            sim.masked_fill_(~allowed, -torch.finfo(sim.dtype).max)
        out = torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v)
        return self.to_out(out.unflatten(0, (b, h)).transpose(1, 2).flatten(2))


@right("right")
class QueryKeyValueMask(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        assert d_model % num_heads == 0
        self.d_k, self.h = d_model // num_heads, num_heads
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(p=dropout)
        self.attn = None

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)  # (batch, queries, keys): the same for every head
        nbatches = query.size(0)
        query, key, value = (
            linear(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for linear, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        x = (self.attn @ value).transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


@right("right")
class QueryKeyValueFused(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_query, self.to_key, self.to_value, self.to_output = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, q, k, v, attn_mask=None):
        q = self.to_query(q).unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)
        k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2) for t in (self.to_key(k), self.to_value(v)))
        hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.to_output(hidden.transpose(-3, -2).flatten(-2))


@right("right")
class QueryKeyValueAndWeights(nn.Module):
    def __init__(self, n_head, d_model, d_k, d_v):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs, self.w_ks = (nn.Linear(d_model, n_head * d_k, bias=False) for _ in range(2))
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)

    def forward(self, q, k, v, mask=None):
        b = q.size(0)
        q, k = (t.view(b, -1, self.n_head, self.d_k).transpose(1, 2) for t in (self.w_qs(q), self.w_ks(k)))
        v = self.w_vs(v).view(b, -1, self.n_head, self.d_v).transpose(1, 2)
        attn = torch.matmul(q / self.d_k**0.5, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        attn = F.softmax(attn, dim=-1)
        out = torch.matmul(attn, v).transpose(1, 2).contiguous().view(b, -1, self.n_head * self.d_v)
        return self.fc(out), attn


@right("convention", says="tokens first")
class TimeFirstNamed(nn.Module):
    """All arguments by name, tokens before the batch."""

    def __init__(self, heads: int, d_model: int, bias: bool = True):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.query, self.key = (nn.Linear(d_model, d_model, bias=bias) for _ in range(2))
        self.value = nn.Linear(d_model, d_model, bias=True)
        self.output = nn.Linear(d_model, d_model)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, *, query, key, value, mask=None):
        query = self.query(query).view(*query.shape[:2], self.heads, self.d_k)
        key = self.key(key).view(*key.shape[:2], self.heads, self.d_k)
        value = self.value(value).view(*value.shape[:2], self.heads, self.d_k)
        scores = torch.einsum("ibhd,jbhd->ijbh", query, key) * self.d_k**-0.5
        if mask is not None:  # (queries, keys, batch)
            scores = scores.masked_fill(mask.unsqueeze(-1) == 0, float("-inf"))
        x = torch.einsum("ijbh,jbhd->ibhd", self.softmax(scores), value)
        return self.output(x.reshape(*x.shape[:2], -1))


@right("convention", says="blocked")
class MemoryWithPadding(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, tgt, memory, memory_key_padding_mask=None):
        q, k, v = self.q(tgt), self.k(memory), self.v(memory)
        outs = []
        for q_h, k_h, v_h in zip(*(t.chunk(self.nhead, dim=-1) for t in (q, k, v)), strict=True):
            scores = torch.bmm(q_h, k_h.transpose(1, 2)) / math.sqrt(q_h.size(-1))
            if memory_key_padding_mask is not None:
                scores = scores.masked_fill(memory_key_padding_mask.unsqueeze(1), -torch.inf)
            outs.append(torch.bmm(scores.softmax(dim=2), v_h))
        return self.out(torch.cat(outs, dim=2))


@right("right")
class AroundPyTorch(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, context=None):
        context = x if context is None else context
        return self.attn(x, context, context, need_weights=False)[0]


@right("convention", says="halves")
class KeysAndValuesPacked(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context):
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.view(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        dots = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
        return self.to_out(torch.matmul(dots.softmax(dim=-1), v).transpose(1, 2).flatten(2))


@right("right", dear=True)
class DecoderOfTwoSequences(nn.Module):
    """Neither is called x, and the lengths are those of one of them."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(dim, num_heads, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))

    def forward(self, y, memory, memory_lens):
        later = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        padding = torch.arange(memory.shape[1])[None, :] >= memory_lens[:, None]
        y = self.norms[0](y + self.own(y, y, y, attn_mask=later)[0])
        return self.norms[1](y + self.other(y, memory, memory, key_padding_mask=padding)[0])


@right("design", says="additive attention")
class AsksWithAState(nn.Module):
    """One state of a decoder asks; its name tells nothing."""

    def __init__(self, encoder_size, decoder_size, hidden_size):
        super().__init__()
        self.of_state = nn.Linear(decoder_size, hidden_size)
        self.of_encoded = nn.Linear(encoder_size, hidden_size, bias=False)
        self.energy = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, s, encoded, encoded_lens):
        scores = self.energy(torch.tanh(self.of_state(s)[:, None] + self.of_encoded(encoded)))[..., 0]
        hidden = torch.arange(encoded.shape[1])[None] >= encoded_lens[:, None]
        weights = F.softmax(scores.masked_fill(hidden, -math.inf), dim=-1)
        return (weights[..., None] * encoded).sum(1)


def attended(module, number, x, memory, hidden):
    """Attention with the matrices of one layer; one function for encoder and decoder."""
    q, k, v, out = module.layers[4 * number : 4 * number + 4]
    q, k, v = (t.unflatten(-1, (module.h, -1)).transpose(1, 2) for t in (q(x), k(memory), v(memory)))
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
    return x + out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@right("right", dear=True)
class OneFunctionForBoth(nn.Module):
    """Encoder and decoder: the attentions of two sequences on one line are two, and only the target's is causal."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.layers = n_heads, nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(12))

    def forward(self, src, tgt):
        later = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        none = torch.zeros(1, 1, dtype=torch.bool)
        memory = attended(self, 0, src, src, none)
        return attended(self, 2, attended(self, 1, tgt, tgt, later), memory, none)
