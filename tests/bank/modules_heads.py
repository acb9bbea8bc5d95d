"""Wrong modules: how heads are split, used and merged."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import wrong


@wrong("split-by-view")
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.h = num_heads
        self.d_k = d_model // num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, q, k, v, mask=None):
        batch = q.size(0)
        query, key, value = (t.view(batch, self.h, -1, self.d_k) for t in (self.w_q(q), self.w_k(k), self.w_v(v)))

        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        attn = scores.softmax(dim=-1)
        x = torch.matmul(attn, value)
        x = x.transpose(1, 2).contiguous().view(batch, -1, self.h * self.d_k)
        return self.w_o(x)


@wrong("split-by-view", also=("merge-without-transpose",), source="reczoo/FuxiCTR#30")
class FieldAttention(nn.Module):
    def __init__(self, embedding_dim, num_heads=2):
        super().__init__()
        self.num_heads = num_heads
        self.attention_dim = embedding_dim // num_heads
        self.W_q, self.W_k, self.W_v = (nn.Linear(embedding_dim, embedding_dim, bias=False) for _ in range(3))

    def forward(self, X):
        batch_size = X.size(0)
        query = self.W_q(X).view(batch_size * self.num_heads, -1, self.attention_dim)
        key, value = (f(X).view(batch_size * self.num_heads, -1, self.attention_dim) for f in (self.W_k, self.W_v))
        similarity = torch.bmm(query, key.transpose(1, 2)) / self.attention_dim**0.5
        weights = similarity.softmax(dim=-1)
        output = torch.bmm(weights, value)
        return output.view(batch_size, -1, self.num_heads * self.attention_dim)


@wrong("split-by-view", also=("merge-without-transpose",), source="zhouhaoyi/Informer2020#59")
class AttentionLayer(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection, self.out_projection = (nn.Linear(d_model, d_model) for _ in range(2))
        self.n_heads = n_heads

    def forward(self, queries, keys, values):
        B, L, _ = queries.shape
        S = keys.shape[1]
        H = self.n_heads
        q = self.query_projection(queries).view(B, L, H, -1)
        k, v = (t.view(B, S, H, -1) for t in (self.key_projection(keys), self.value_projection(values)))

        q = q.view(B, H, L, -1)
        k = k.view(B, H, S, -1)
        v = v.view(B, H, S, -1)
        scores = torch.einsum("bhle,bhse->bhls", q, k)
        A = torch.softmax(q.shape[-1] ** -0.5 * scores, dim=-1)
        out = torch.einsum("bhls,bhsd->bhld", A, v).contiguous()
        return self.out_projection(out.view(B, L, -1))


@wrong("heads-attend-heads", dear=True)
class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.heads, -1) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = dots.softmax(dim=-1)
        out = torch.matmul(attn, v)
        return self.to_out(out.reshape(b, n, -1))


@wrong("heads-attend-heads")
class EinsumAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, hidden_states):
        bsz, seq_len, _ = hidden_states.shape
        shape = (bsz, seq_len, self.num_heads, self.head_dim)
        q, k, v = (f(hidden_states).reshape(shape) for f in (self.q_proj, self.k_proj, self.v_proj))
        energy = torch.einsum("bnqd,bnkd->bnqk", q, k) / math.sqrt(self.head_dim)
        attention = F.softmax(energy, dim=-1)
        context = torch.einsum("bnqk,bnkd->bnqd", attention, v)
        return self.out_proj(context.flatten(2))


@wrong("merge-without-transpose", source="jsbaan/transformer-from-scratch#6")
class MultiheadSelfAttention(nn.Module):
    def __init__(self, hidden_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_dim = hidden_dim // num_heads
        self.query = nn.Linear(hidden_dim, hidden_dim, bias=False)
        self.key, self.value, self.o_proj = (nn.Linear(hidden_dim, hidden_dim, bias=False) for _ in range(3))

    def _heads(self, t):
        batch_size, sequence_length, _ = t.size()
        return t.reshape(batch_size, sequence_length, self.num_heads, self.qkv_dim).permute(0, 2, 1, 3)

    def forward(self, x):
        batch_size, sequence_length, hidden_dim = x.size()
        q, k, v = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        attn_logits = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.size(-1))
        attention = F.softmax(attn_logits, dim=-1)
        values = torch.matmul(attention, v)
        values = values.reshape(batch_size, sequence_length, hidden_dim)
        return self.o_proj(values)


@wrong("merge-without-transpose", source="ajhalthor/Transformer-Neural-Network#4")
class InterleavedAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.qkv_layer = nn.Linear(d_model, 3 * d_model)
        self.linear_layer = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        batch_size, sequence_length, _ = x.size()
        qkv = self.qkv_layer(x)
        qkv = qkv.reshape(batch_size, sequence_length, self.num_heads, 3 * self.head_dim)
        qkv = qkv.permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        scaled = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        if mask is not None:
            scaled = scaled + mask
        attention = F.softmax(scaled, dim=-1)
        values = torch.matmul(attention, v)
        values = values.reshape(batch_size, sequence_length, self.num_heads * self.head_dim)
        return self.linear_layer(values)


@wrong("merge-without-transpose", source="hackiey/QAnet-pytorch#2")
class LoopedHeads(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.wq = nn.ModuleList([nn.Linear(d_model, self.d_head, bias=False) for _ in range(n_heads)])
        self.wk = nn.ModuleList([nn.Linear(d_model, self.d_head, bias=False) for _ in range(n_heads)])
        self.wv = nn.ModuleList([nn.Linear(d_model, self.d_head, bias=False) for _ in range(n_heads)])
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = x.new_zeros(self.n_heads, batch, length, self.d_head)
        for i in range(self.n_heads):
            q, k, v = self.wq[i](x), self.wk[i](x), self.wv[i](x)
            weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / self.d_head**0.5, dim=2)
            heads[i] = torch.bmm(weights, v)
        return self.wo(heads.view(batch, length, -1))


@wrong("merge-without-transpose", source="meta-pytorch/opacus#825")
class BatchFirstAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.qlinear = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.klinear, self.vlinear, self.out_proj = (nn.Linear(embed_dim, embed_dim, bias=bias) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def _split(self, t):
        bsz, length, _ = t.shape
        t = t.view(bsz, length, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
        return t.reshape(bsz * self.num_heads, length, self.head_dim)

    def forward(self, query, key, value):
        bsz, tgt_len, _ = query.shape
        q = self._split(self.qlinear(query) * self.head_dim**-0.5)
        k, v = (self._split(t) for t in (self.klinear(key), self.vlinear(value)))
        weights = self.dropout(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1))
        attn_output = torch.bmm(weights, v)
        return self.out_proj(attn_output.view(bsz, tgt_len, self.embed_dim))


@wrong("one-head-only", dear=True)
class SlicedAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        collected = []
        for _head in range(self.n_heads):
            qh, kh, vh = q[..., : self.d_k], k[..., : self.d_k], v[..., : self.d_k]
            score = qh @ kh.transpose(-1, -2) / self.d_k**0.5
            if mask is not None:
                score = score.masked_fill(~mask, float("-inf"))
            collected.append(self.drop(score.softmax(-1)) @ vh)
        return self.out(torch.cat(collected, dim=-1))


class _Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


@wrong("one-head-only")
class LastHeadAttention(nn.Module):
    def __init__(self, n_embd, num_heads, block_size=64):
        super().__init__()
        self.heads = nn.ModuleList([_Head(n_embd, n_embd // num_heads, block_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        for head in self.heads:
            out = head(x)
        out = torch.cat([out for _ in self.heads], dim=-1)
        return self.proj(out)


@wrong("heads-added")
class SummedHeads(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.depth = d_model // num_heads
        self.wq, self.wk, self.wv, self.dense = (nn.Linear(d_model, d_model) for _ in range(4))

    def split_heads(self, x):
        return x.view(x.size(0), -1, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.split_heads(self.wq(x)), self.split_heads(self.wk(x)), self.split_heads(self.wv(x))
        logits = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.depth)
        output = torch.matmul(F.softmax(logits, dim=-1), v)
        return self.dense(output.sum(dim=1).repeat(1, 1, self.num_heads))


@wrong("heads-added")
class AveragedHeads(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.in_proj(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        heads = F.scaled_dot_product_attention(q, k, v)
        merged = heads.mean(dim=1)
        return self.out_proj(merged.repeat(1, 1, self.num_heads))


@wrong("kv-first-head")
class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.n_heads = num_heads
        self.n_kv_heads = num_kv_heads
        self.head_dim = d_model // num_heads
        self.q_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(d_model, num_kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(num_heads * self.head_dim, d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k, v = (f(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        k = k[:, :1].expand(-1, self.n_heads, -1, -1)
        v = v[:, :1].expand(-1, self.n_heads, -1, -1)
        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        probs = scores.masked_fill(causal, float("-inf")).softmax(dim=-1)
        return self.o_proj((probs @ v).transpose(1, 2).reshape(b, t, -1))


@wrong("kv-first-head")
class LlamaAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x, mask=None):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk, xv = (f(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim) for f in (self.wk, self.wv))
        group = torch.arange(self.n_heads, device=x.device) // self.n_heads
        keys, values = xk[:, :, group], xv[:, :, group]
        scores = torch.einsum("bqhd,bkhd->bhqk", xq, keys) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        output = torch.einsum("bhqk,bkhd->bqhd", F.softmax(scores, dim=-1), values)
        return self.wo(output.flatten(2))


@wrong("merge-without-transpose", also=("no-scale",))
class TinyViTAttention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        x = (attn @ v).reshape(B, N, C)
        return self.proj(x)
