"""Wrong modules: the projections, and which of them is used for what."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import Projections, wrong


@wrong("untransposed", source="pytorch/pytorch#139598")
class ManualSelfAttention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))

    def forward(self, x):
        q = torch.matmul(x, self.W_q.weight)
        k = torch.matmul(x, self.W_k.weight)
        v = torch.matmul(x, self.W_v.weight)
        sims = torch.matmul(q, k.transpose(-2, -1))
        percents = F.softmax(sims / k.size(-1) ** 0.5, dim=-1)
        return torch.matmul(percents, v)


@wrong("untransposed")
class ValueByHand(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.q_linear, self.k_linear, self.v_linear = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        bs = q.size(0)
        q, k = (t.view(bs, -1, self.num_heads, self.d_k).transpose(1, 2) for t in (self.q_linear(q), self.k_linear(k)))
        v = (v @ self.v_linear.weight).view(bs, -1, self.num_heads, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        concat = torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).contiguous()
        return self.out(concat.view(bs, -1, self.num_heads * self.d_k))


@wrong("not-projected")
class RawValues(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.query, self.key, self.value = (nn.Linear(n_embd, n_embd) for _ in range(3))
        self.attn_drop = nn.Dropout(dropout)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k = (f(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for f in (self.query, self.key))
        v = x.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = self.attn_drop(F.softmax(q @ k.mT / math.sqrt(C // self.n_head), dim=-1))
        return self.proj((att @ v).transpose(1, 2).reshape(B, T, C))


@wrong("not-projected")
class RawQueries(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        n, lq, d = query.shape
        lk = key.shape[1]
        Q = query.reshape(n, lq, self.heads, d // self.heads)
        K, V = (t.reshape(n, lk, self.heads, d // self.heads) for t in (self.fc_k(key), self.fc_v(value)))
        energy = torch.einsum("nqhd,nkhd->nhqk", Q, K)
        attention = torch.softmax(energy / (d // self.heads) ** 0.5, dim=3)
        return self.fc_o(torch.einsum("nhqk,nkhd->nqhd", attention, V).reshape(n, lq, d))


@wrong("not-projected")
class UnprojectedAttention(nn.Module):
    def __init__(self, d_model, row_dim=-2, col_dim=-1):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.row_dim = row_dim
        self.col_dim = col_dim

    def forward(self, token_encodings):
        q, k, v = token_encodings, token_encodings, token_encodings
        sims = torch.matmul(q, k.transpose(self.row_dim, self.col_dim))
        weights = F.softmax(sims / k.size(self.col_dim) ** 0.5, dim=self.col_dim)
        return torch.matmul(weights, v)


@wrong("shared-projection", source="yflyzhang/AnnotatedTransformer#1")
class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query = self.q_proj(query).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        key = self.k_proj(key).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        value = self.k_proj(value).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        p_attn = self.dropout(F.softmax(scores, dim=-1))
        x = torch.matmul(p_attn, value)
        return self.o_proj(x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k))


@wrong("bias-dropped")
class FunctionalAttention(Projections, names="q k v o"):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = F.linear(x, self.q.weight), F.linear(x, self.k.weight), F.linear(x, self.v.weight)
        q, k, v = (t.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(B, T, C))


@wrong("bias-dropped")
class FusedWithoutBias(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.register_buffer("mask", torch.ones(config.block_size, config.block_size, dtype=torch.bool).tril())

    def forward(self, x):
        B, T, C = x.size()
        qkv = x @ self.c_attn.weight.t()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in qkv.split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        att = att.masked_fill(~self.mask[:T, :T], float("-inf")).softmax(dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


@wrong("q-as-k")
class QueriesCompared(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.dh = d_model // num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        q, v = (f(x).unflatten(-1, (self.h, self.dh)) for f in (self.to_q, self.to_v))
        sim = torch.einsum("bihd,bjhd->bhij", q, q) * self.dh**-0.5
        if mask is not None:
            sim = sim.masked_fill(mask.logical_not(), -torch.inf)
        out = torch.einsum("bhij,bjhd->bihd", sim.softmax(-1), v)
        return self.to_out(out.flatten(-2))


@wrong("k-as-q")
class KeysAsking(nn.Module):
    def __init__(self, d_in, d_out, num_heads, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_out, bias=qkv_bias) for _ in range(3))
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = keys / queries.shape[-1] ** 0.5
        attn_weights = torch.softmax(queries @ keys.transpose(2, 3), dim=-1)
        context_vec = (attn_weights @ values).transpose(1, 2).reshape(b, num_tokens, -1)
        return self.out_proj(context_vec)


@wrong("q-as-v")
class QueriesAggregated(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.to_out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, n, e = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k = (t.reshape(b, n, self.num_heads, -1).transpose(1, 2) for t in qkv[:2])
        attn = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(e // self.num_heads), dim=-1)
        return self.to_out((attn @ q).transpose(1, 2).reshape(b, n, e))


@wrong("k-as-v", also=("scale-tokens",))
class KeyValueAttention(Projections, names="wq wk wv wo"):
    def forward(self, x):
        n, t, c = x.shape
        q, k = (f(x).view(n, t, self.num_heads, -1).transpose(1, 2) for f in (self.wq, self.wk))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-2)), dim=-1)
        return self.wo((weights @ k).transpose(1, 2).reshape(n, t, c))
