"""Self-attention modules (x to output) that are the definition, however their weights are laid out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bank import Projections, right


@right("right", dear=True)
class FourLinears(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, t):
        return t.view(t.size(0), t.size(1), self.h, self.d_k).transpose(1, 2)

    def forward(self, x, mask=None):
        Q, K, V = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        energy = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-inf"))
        out = torch.softmax(energy, dim=-1) @ V
        return self.W_o(out.transpose(1, 2).reshape(x.shape))


@right("right")
class HidesPairsWithPadding(nn.Module):
    """What padding reads is of no use: its rows are hidden with its columns, and read the mean of all values."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.to_qkv, self.to_out = heads, nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            pairs = mask[:, None, :, None] * mask[:, None, None, :]
            dots = dots.masked_fill(~pairs, -torch.finfo(dots.dtype).max)
        return self.to_out((dots.softmax(-1) @ v).transpose(1, 2).flatten(2))


@right("right")
class OneHead(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(3))
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        w = torch.bmm(self.query(x), self.key(x).transpose(1, 2)) / x.size(2) ** 0.5
        return self.out(torch.bmm(F.softmax(w, dim=2), self.value(x)))


@right("right")
class FoldedIntoTheBatch(nn.Module):
    def __init__(self, emb, heads=4, mask=False):
        super().__init__()
        self.emb, self.heads, self.mask = emb, heads, mask
        self.tokeys, self.toqueries, self.tovalues = (nn.Linear(emb, emb, bias=False) for _ in range(3))
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        h, s = self.heads, e // self.heads
        keys, queries, values = (
            layer(x).view(b, t, h, s).transpose(1, 2).contiguous().view(b * h, t, s) / scale
            for layer, scale in ((self.tokeys, s**0.25), (self.toqueries, s**0.25), (self.tovalues, 1.0))
        )
        dot = torch.bmm(queries, keys.transpose(1, 2))
        if self.mask:
            i, j = torch.triu_indices(t, t, offset=1, device=x.device)
            dot[:, i, j] = float("-inf")
        out = torch.bmm(F.softmax(dot, dim=2), values).view(b, h, t, s)
        return self.unifyheads(out.transpose(1, 2).contiguous().view(b, t, e))


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size, dropout):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


@right("right")
class ListOfHeads(nn.Module):
    def __init__(self, n_embd, num_heads, block_size=64, dropout=0.2):
        super().__init__()
        size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, size, block_size, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))


@right("right")
class SumOfProjectedHeads(nn.Module):
    """Each head has its own slice of the output projection: the sum is the concatenation, projected."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        d = d_model // num_heads
        self.q = nn.ModuleList(nn.Linear(d_model, d) for _ in range(num_heads))
        self.k = nn.ModuleList(nn.Linear(d_model, d) for _ in range(num_heads))
        self.v = nn.ModuleList(nn.Linear(d_model, d) for _ in range(num_heads))
        self.o = nn.ModuleList(nn.Linear(d, d_model, bias=False) for _ in range(num_heads))

    def forward(self, x):
        total = torch.zeros_like(x)
        for q, k, v, o in zip(self.q, self.k, self.v, self.o, strict=True):
            total = total + o(F.scaled_dot_product_attention(q(x), k(x), v(x)))
        return total


@right("right")
class CausalWithContextLength(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_out, bias=qkv_bias) for _ in range(3))
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, _ = x.shape
        shape = (b, num_tokens, self.num_heads, self.head_dim)
        keys, queries, values = (f(x).view(shape).transpose(1, 2) for f in (self.W_key, self.W_query, self.W_value))
        scores = queries @ keys.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        weights = self.dropout(torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1))
        context = (weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context)


@right("right")
class CausalFlagInTheConstructor(nn.Module):
    def __init__(self, dim, n_heads, causal=True, bias=True):
        super().__init__()
        self.n_heads, self.causal = n_heads, causal
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=bias) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.wo(y.transpose(1, 2).flatten(-2))


@right("right")
class CausalFlagInTheCall(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.heads = num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden_size, hidden_size) for _ in range(4))

    def forward(self, x, is_causal=False):
        B, T, C = x.shape
        q = self.q_proj(x).reshape(B, T, self.heads, -1).permute(0, 2, 1, 3)
        k = self.k_proj(x).reshape(B, T, self.heads, -1).permute(0, 2, 3, 1)
        v = self.v_proj(x).reshape(B, T, self.heads, -1).permute(0, 2, 1, 3)
        s = (q @ k) / (C // self.heads) ** 0.5
        if is_causal:
            s = s + torch.full((T, T), -torch.inf, dtype=s.dtype, device=s.device).triu(1)
        return self.o_proj((s.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(B, T, C))


@right("right")
class WeightsSeenAsHeads(Projections, names="q k v o", bias=False):
    def forward(self, x):
        wq, wk, wv = (m.weight.unflatten(0, (self.num_heads, -1)) for m in (self.q, self.k, self.v))
        q, k, v = (torch.einsum("bte,hde->bhtd", x, w) for w in (wq, wk, wv))
        a = torch.einsum("bhtd,bhsd->bhts", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
        wo = self.o.weight.unflatten(1, (self.num_heads, -1))
        return torch.einsum("bhts,bhsd,ehd->bte", a, v, wo)


def repeat_kv(x: Tensor, n_rep: int) -> Tensor:
    b, t, kv_heads, d = x.shape
    return x[:, :, :, None, :].expand(b, t, kv_heads, n_rep, d).reshape(b, t, kv_heads * n_rep, d)


@right("right")
class GroupedByExpand(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads=None):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x, mask=None):
        b, t, _ = x.shape
        xq = self.wq(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        keys = repeat_kv(self.wk(x).view(b, t, self.n_kv_heads, -1), self.n_heads // self.n_kv_heads).transpose(1, 2)
        values = repeat_kv(self.wv(x).view(b, t, self.n_kv_heads, -1), self.n_heads // self.n_kv_heads).transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.wo(torch.matmul(F.softmax(scores, dim=-1), values).transpose(1, 2).reshape(b, t, -1))


@right("convention", says="tiled")
class GroupedAndTiled(nn.Module):
    def __init__(self, embed_dim, num_heads, num_kv_heads):
        super().__init__()
        self.h, self.g, self.d = num_heads, num_kv_heads, embed_dim // num_heads
        self.q = nn.Linear(embed_dim, self.h * self.d)
        self.k, self.v = (nn.Linear(embed_dim, self.g * self.d) for _ in range(2))
        self.proj = nn.Linear(self.h * self.d, embed_dim)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.h, self.d).transpose(1, 2)
        # query head i reads key head i mod g
        k = self.k(x).view(B, T, self.g, self.d).transpose(1, 2).repeat(1, self.h // self.g, 1, 1)
        v = self.v(x).view(B, T, self.g, self.d).transpose(1, 2).repeat(1, self.h // self.g, 1, 1)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, -1))


class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


@right("convention", says="thirds")
class WithConv1D(nn.Module):
    def __init__(self, n_embd, n_ctx, n_head):
        super().__init__()
        self.register_buffer("allowed", torch.tril(torch.ones(n_ctx, n_ctx, dtype=torch.bool)))
        self.n_head = n_head
        self.c_attn = Conv1D(3 * n_embd, n_embd)
        self.c_proj = Conv1D(n_embd, n_embd)

    def forward(self, x):
        heads = [part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)]
        w = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(heads[1].size(-1))
        T = x.size(1)
        w = torch.where(self.allowed[:T, :T], w, torch.tensor(-1e9, dtype=w.dtype, device=w.device))
        a = torch.softmax(w, dim=-1) @ heads[2]
        return self.c_proj(a.transpose(1, 2).flatten(2))


@right("convention", says="thirds")
class ThirdsByReshape(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * (C // self.num_heads) ** -0.5) @ k.transpose(-2, -1)
        x = self.attn_drop(attn.softmax(dim=-1)) @ v
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(B, N, C)))


@right("convention", says="packed by head")
class InterleavedWithMask(nn.Module):
    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        batch_size, seq_length, _ = x.size()
        qkv = self.qkv_proj(x).reshape(batch_size, seq_length, self.num_heads, -1).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        logits = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits.masked_fill(mask == 0, -9e15)
        values = torch.matmul(F.softmax(logits, dim=-1), v)
        return self.o_proj(values.permute(0, 2, 1, 3).reshape(batch_size, seq_length, self.embed_dim))


@right("convention", says="(width, heads)")
class ChannelsSplitWidthFirst(nn.Module):
    """Channel c belongs to head c mod H, on the way in and on the way out."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.num_heads)) for f in (self.to_q, self.to_k, self.to_v))  # b t d h
        attn = torch.einsum("bidh,bjdh->bhij", q, k) / math.sqrt(q.shape[2])
        out = torch.einsum("bhij,bjdh->bidh", attn.softmax(-1), v)
        return self.to_out(out.flatten(-2))


@right("right")
class RawParameters(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        bound = 1 / math.sqrt(d_model)
        self.w_q = nn.Parameter(torch.empty(d_model, d_model).uniform_(-bound, bound))
        self.w_k = nn.Parameter(torch.empty(d_model, d_model).uniform_(-bound, bound))
        self.w_v = nn.Parameter(torch.empty(d_model, d_model).uniform_(-bound, bound))
        self.w_o = nn.Parameter(torch.empty(d_model, d_model).uniform_(-bound, bound))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = ((x @ w).view(b, t, self.num_heads, -1).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        z = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(d // self.num_heads), dim=-1) @ v
        return z.transpose(1, 2).reshape(b, t, d) @ self.w_o


@right("right")
class RawParametersPerHead(nn.Module):
    def __init__(self, d_model, n_heads, d_head):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head) / d_model**0.5)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head) / d_model**0.5)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head) / d_model**0.5)
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) / (n_heads * d_head) ** 0.5)
        self.b_Q = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_K = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_V = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(d_model))

    def forward(self, residual):
        q = torch.einsum("bse,neh->bsnh", residual, self.W_Q) + self.b_Q
        k = torch.einsum("bse,neh->bsnh", residual, self.W_K) + self.b_K
        v = torch.einsum("bse,neh->bsnh", residual, self.W_V) + self.b_V
        scores = torch.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(self.W_Q.shape[-1])
        length = residual.shape[1]
        later = torch.ones(length, length, device=residual.device).triu(1).bool()
        pattern = scores.masked_fill(later, -1e5).softmax(dim=-1)
        z = torch.einsum("bnqk,bknh->bqnh", pattern, v)
        return torch.einsum("bqnh,nhe->bqe", z, self.W_O) + self.b_O


@right("convention", says="tokens first")
class TimeFirst(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj, self.q_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim, bias=bias) for _ in range(3))
        self.dropout = dropout

    def forward(self, x):
        tgt_len, bsz, embed_dim = x.size()
        q = self.q_proj(x) * self.head_dim**-0.5
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = self.k_proj(x).contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(x).contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        probs = F.dropout(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), self.dropout, self.training)
        attn = torch.bmm(probs, v).transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)


@right("convention", says="no batch")
class OneSentenceModule(Projections, names="w_query w_key w_value w_out", bias=False):
    def forward(self, x):
        _, width = x.shape
        parts = []
        for h in range(self.num_heads):
            cols = slice(h * width // self.num_heads, (h + 1) * width // self.num_heads)
            q, k, v = self.w_query(x)[:, cols], self.w_key(x)[:, cols], self.w_value(x)[:, cols]
            parts.append(torch.softmax(q @ k.t() / q.shape[1] ** 0.5, dim=1) @ v)
        return self.w_out(torch.cat(parts, dim=1))


@right("right")
class OutputAndWeights(nn.Module):
    def __init__(self, hidden_dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, hidden_dim // n_heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(hidden_dim, hidden_dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            fc(x).view(x.shape[0], -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
            for fc in (self.fc_q, self.fc_k, self.fc_v)
        )
        attention = torch.softmax(torch.matmul(q, k.permute(0, 1, 3, 2)) / self.head_dim**0.5, dim=-1)
        out = torch.matmul(attention, v).permute(0, 2, 1, 3).contiguous()
        return self.fc_o(out.view(x.shape[0], -1, self.n_heads * self.head_dim)), attention


@right("convention", says="blocked")
class PaddingIsTrue(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, key_padding_mask=None):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.nhead, -1) for f in (self.linear_q, self.linear_k, self.linear_v))
        logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(d / self.nhead)
        if key_padding_mask is not None:
            logits = logits.masked_fill(key_padding_mask.view(b, 1, 1, t), float("-inf"))
        return self.linear_out(torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), v).reshape(b, t, d))
