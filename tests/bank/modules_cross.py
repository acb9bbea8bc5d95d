"""Wrong modules: cross-attention, and what is taken from where."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import Projections, wrong


@wrong("k-from-x")
class CrossAttention(nn.Module):
    def __init__(self, query_dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q, self.to_k, self.to_v = (nn.Linear(query_dim, inner_dim, bias=False) for _ in range(3))
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def forward(self, x, context):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(context)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


@wrong("k-from-x")
class MemoryAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, memory, mask=None):
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(memory).view(B, memory.size(1), self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, x.size(1), self.num_heads, self.head_dim).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        out = F.softmax(scores, dim=-1) @ v
        return self.out_proj(out.transpose(1, 2).reshape(B, T, C))


@wrong("q-from-context", dear=True)
class EncoderDecoderAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def heads(self, t):
        return t.reshape(t.shape[0], t.shape[1], self.n_heads, -1).permute(0, 2, 1, 3)

    def forward(self, x, context):
        q, k, v = (self.heads(f(context)) for f in (self.w_q, self.w_k, self.w_v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
        return self.w_o((weights @ v).permute(0, 2, 1, 3).flatten(2))


@wrong("q-from-context", source="rexrex9/nlp_torchtext#2")
class ExchangedCrossAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x, encoder_output):
        b, _, e = x.shape
        Q = self.query(encoder_output).view(b, -1, self.num_heads, e // self.num_heads).transpose(1, 2)
        K, V = (f(x).view(b, -1, self.num_heads, e // self.num_heads).transpose(1, 2) for f in (self.key, self.value))
        A = F.softmax(Q.matmul(K.transpose(2, 3)).div(math.sqrt(e // self.num_heads)), dim=3)
        return self.out(A.matmul(V).transpose(1, 2).contiguous().view(b, -1, e))


@wrong("context-ignored")
class ConditionedAttention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        q = self.to_q(x)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.view(t.shape[0], t.shape[1], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        out = ((q * self.scale) @ k.transpose(-1, -2)).softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).flatten(2))


class _Heads(Projections, names="wq wk wv wo"):
    def forward(self, q, k, v, mask=None):
        q, k, v = (
            f(t).view(t.size(0), t.size(1), self.num_heads, -1).transpose(1, 2)
            for f, t in ((self.wq, q), (self.wk, k), (self.wv, v))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.wo((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


@wrong("context-ignored")
class DecoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.self_attn = _Heads(d_model, num_heads)
        self.cross_attn = _Heads(d_model, num_heads)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))

    def forward(self, x, memory, tgt_mask=None):
        x = self.norm1(x + self.self_attn(x, x, x, tgt_mask))
        x = self.norm2(x + self.cross_attn(x, x, x))
        return self.norm3(x + self.feed_forward(x))


@wrong("shared-projection")
class ContextAttention(Projections, names="proj_q proj_k proj_v proj_o", bias=False):
    def forward(self, x, context):
        n, t, c = x.shape
        q = self.proj_q(x).view(n, t, self.num_heads, c // self.num_heads)
        k, v = (f(context).view(n, -1, self.num_heads, c // self.num_heads) for f in (self.proj_q, self.proj_v))
        w = torch.einsum("nqhd,nkhd->nhqk", q, k).div((c // self.num_heads) ** 0.5).softmax(-1)
        return self.proj_o(torch.einsum("nhqk,nkhd->nqhd", w, v).reshape(n, t, c))
