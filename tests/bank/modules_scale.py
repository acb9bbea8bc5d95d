"""Wrong modules: the number that the scores are divided by."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import Projections, wrong


@wrong("no-scale")
class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size=256, dropout=0.0):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        _, T, _ = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ v


@wrong("scale-d", source="delzac/cntkx#10")
class ScaledDotProduct(nn.Module):
    def __init__(self, model_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = model_dim // num_heads
        self.query, self.key, self.value, self.output = (nn.Linear(model_dim, model_dim) for _ in range(4))

    def forward(self, query, key, value):
        def heads(x):
            return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

        q, k, v = heads(self.query(query)), heads(self.key(key)), heads(self.value(value))
        scaled = torch.matmul(q, k.transpose(-1, -2)) / self.head_dim
        attended = torch.matmul(F.softmax(scaled, dim=-1), v)
        return self.output(attended.transpose(1, 2).flatten(2))


class _CausalHead(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        _, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return wei @ self.value(x)


@wrong("scale-d-model", source="karpathy/ng-video-lecture#6")
class LectureAttention(nn.Module):
    def __init__(self, n_embd, num_heads, block_size=256):
        super().__init__()
        head_size = n_embd // num_heads
        self.heads = nn.ModuleList([_CausalHead(n_embd, head_size, block_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


@wrong("scale-d-model", source="lucidrains/vit-pytorch#65")
class VisionAttention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = (dim_head * heads) ** -0.5
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x):
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(2, (self.heads, -1)).permute(0, 2, 1, 3) for t in qkv)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)
        return self.to_out(out.permute(0, 2, 1, 3).flatten(2))


@wrong("scale-d-model", source="aladdinpersson/Machine-Learning-Collection#159")
class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        self.values, self.keys, self.queries, self.fc_out = (nn.Linear(embed_size, embed_size) for _ in range(4))

    def forward(self, values, keys, query, mask=None):
        N, query_len = query.shape[0], query.shape[1]
        values, keys = (t.reshape(N, -1, self.heads, self.head_dim) for t in (self.values(values), self.keys(keys)))
        queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", queries, keys)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e20)
        attention = torch.softmax(energy / (self.embed_size**0.5), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", attention, values)
        return self.fc_out(out.reshape(N, query_len, self.heads * self.head_dim))


@wrong("scale-d-value")
class MultiHeadAttention(nn.Module):
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs, self.w_ks = (nn.Linear(d_model, n_head * d_k, bias=False) for _ in range(2))
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        sz_b, len_q = q.size(0), q.size(1)
        q, k = (t.view(sz_b, -1, self.n_head, self.d_k).transpose(1, 2) for t in (self.w_qs(q), self.w_ks(k)))
        v = self.w_vs(v).view(sz_b, -1, self.n_head, self.d_v).transpose(1, 2)
        temperature = v.size(-1) ** 0.5
        attn = torch.matmul(q / temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        return self.fc(torch.matmul(attn, v).transpose(1, 2).reshape(sz_b, len_q, -1))


@wrong("scale-heads", source="tenstorrent/tt-metal#56789")
class ClipAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = 1.0 / math.sqrt(num_heads)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, hidden_states, attention_mask=None):
        bsz, tgt_len, _ = hidden_states.shape
        q, k, v = (
            p(hidden_states).view(bsz, tgt_len, self.num_heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn_weights = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask
        attn_output = torch.matmul(F.softmax(attn_weights, dim=-1), v)
        return self.out_proj(attn_output.transpose(1, 2).reshape(bsz, tgt_len, -1))


@wrong("scale-batch")
class ShapeScaled(Projections, names="wq wk wv wo", bias=False):
    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).movedim(-2, 1) for f in (self.wq, self.wk, self.wv))
        d_k = q.shape[0]
        p = (q @ k.mT).div(math.sqrt(d_k)).softmax(-1)
        return self.wo((p @ v).movedim(1, -2).flatten(-2))


@wrong("scale-multiplied", source="esceptico/perceiver-io#9")
class PerceiverAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.qk_head_dim = dim // num_heads
        self.scale = self.qk_head_dim**-0.5
        self.q, self.k, self.v, self.projection = (nn.Linear(dim, dim) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, context):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        k, v = (f(context).view(b, context.size(1), self.num_heads, -1).transpose(1, 2) for f in (self.k, self.v))
        attention = q @ k.transpose(-2, -1) / self.scale
        attention = self.dropout(attention.softmax(dim=-1))
        return self.projection((attention @ v).transpose(1, 2).reshape(b, t, -1))


@wrong("scale-multiplied", source="rasbt/LLMs-from-scratch#856")
class CombinedQKV(nn.Module):
    def __init__(self, d_in, d_out, num_heads, context_length, dropout=0.0, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)
        self.proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        batch_size, num_tokens, _ = x.shape
        qkv = self.qkv(x).view(batch_size, num_tokens, 3, self.num_heads, self.head_dim)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn_scores = queries @ keys.transpose(-2, -1)
        attn_scores = attn_scores.masked_fill(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = self.dropout(torch.softmax(attn_scores / keys.shape[-1] ** -0.5, dim=-1))
        context_vec = (attn_weights @ values).transpose(1, 2).contiguous()
        return self.proj(context_vec.view(batch_size, num_tokens, -1))


@wrong("scale-fourth-root")
class DiffusionAttention(nn.Module):
    def __init__(self, channels, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(channels, channels * 3)
        self.proj_out = nn.Linear(channels, channels)

    def forward(self, x):
        bs, length, width = x.shape
        ch = width // self.num_heads
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(bs, length, self.num_heads, ch) for t in (q, k, v))
        scale = 1 / math.sqrt(math.sqrt(ch))
        weight = torch.einsum("bthc,bshc->bhts", q * scale, k)
        weight = torch.softmax(weight, dim=-1)
        a = torch.einsum("bhts,bshc->bthc", weight, v)
        return self.proj_out(a.reshape(bs, length, -1))


@wrong("scale-half")
class HalfWidthScale(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.scaling = (self.head_dim / 2) ** -0.5
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))

    def forward(self, x):
        shape = (*x.shape[:-1], self.num_heads, self.head_dim)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scaling)
        return self.o_proj(y.transpose(1, 2).reshape(x.shape))


@wrong("scale-floor")
class FloorScaled(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.d_head = d_model // num_heads
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        batch, seq, _ = x.shape
        q = self.W_Q(x).reshape(batch, seq, self.num_heads, self.d_head).transpose(1, 2)
        k, v = (f(x).reshape(batch, seq, self.num_heads, self.d_head).transpose(1, 2) for f in (self.W_K, self.W_V))
        attn_scores = q @ k.transpose(-2, -1) // self.d_head**0.5
        attn_probs = torch.softmax(attn_scores, dim=-1)
        return self.W_O((attn_probs @ v).transpose(1, 2).reshape(batch, seq, -1))


@wrong("scale-d-model", also=("mask-inverted",))
class FutureScaled(nn.Module):
    def __init__(self, d_model, num_heads, max_len=128):
        super().__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.register_buffer("causal_mask", torch.triu(torch.ones(max_len, max_len)))

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_model)
        scores = scores.masked_fill(self.causal_mask[:T, :T] == 0, float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, self.d_model))
