"""Wrong modules: the mask, whether an argument, a flag or built in."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import Projections, right, wrong


@wrong("mask-dropped", source="facebookresearch/xformers#103")
class FlaggedAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, att_mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if att_mask is not None:
            if self.causal:
                att_mask = att_mask.tril()
            att = att.masked_fill(~att_mask, float("-inf"))
        y = att.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, N, C))


@wrong("mask-dropped")
class MaskedMultiHeadAttention(Projections, names="w_q w_k w_v w_o"):
    def forward(self, q, k, v, mask=None):
        B = q.size(0)
        query = self.w_q(q).view(B, -1, self.num_heads, q.size(-1) // self.num_heads).transpose(1, 2)
        key = self.w_k(k).view(B, -1, self.num_heads, q.size(-1) // self.num_heads).transpose(1, 2)
        value = self.w_v(v).view(B, -1, self.num_heads, q.size(-1) // self.num_heads).transpose(1, 2)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        masked = scores
        if mask is not None:
            masked = scores.masked_fill(mask == 0, -1e9)
        masked = F.softmax(scores, dim=-1)
        return self.w_o((masked @ value).transpose(1, 2).flatten(2))


@wrong("mask-inverted", source="rasbt/LLMs-from-scratch#1061")
class MHAScaledDotProduct(nn.Module):
    def __init__(self, d_in, d_out, num_heads, context_length, dropout=0.0, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)
        self.proj = nn.Linear(d_out, d_out)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool())

    def forward(self, x):
        batch_size, num_tokens, _ = x.shape
        qkv = self.qkv(x).view(batch_size, num_tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = qkv
        attn_mask = self.mask[:num_tokens, :num_tokens]
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=attn_mask, dropout_p=dropout)
        return self.proj(context.transpose(1, 2).reshape(batch_size, num_tokens, -1))


@wrong("mask-strict", source="pbloem/former#10")
class FormerAttention(nn.Module):
    def __init__(self, emb, heads=8):
        super().__init__()
        self.heads = heads
        self.tokeys, self.toqueries, self.tovalues = (nn.Linear(emb, emb, bias=False) for _ in range(3))
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        h, s = self.heads, e // self.heads
        keys = self.tokeys(x).view(b, t, h, s).transpose(1, 2).reshape(b * h, t, s)
        queries = self.toqueries(x).view(b, t, h, s).transpose(1, 2).reshape(b * h, t, s)
        values = self.tovalues(x).view(b, t, h, s).transpose(1, 2).reshape(b * h, t, s)
        dot = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(s)
        indices = torch.triu_indices(t, t, offset=0)
        dot[:, indices[0], indices[1]] = float("-inf")
        out = torch.bmm(F.softmax(dot, dim=2), values).view(b, h, t, s)
        return self.unifyheads(out.transpose(1, 2).reshape(b, t, e))


@wrong("mask-one-ahead")
class ShiftedCausal(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, is_causal=True):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        allowed = None
        if is_causal:
            position = torch.arange(T, device=x.device)
            allowed = position[None, :] <= position[:, None] + 1
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))


@wrong("mask-transposed")
class TransposedMask(Projections, names="q_proj k_proj v_proj out_proj"):
    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.num_heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask.transpose(-2, -1) == 0, -1e9)
        out = torch.matmul(scores.softmax(dim=-1), v)
        return self.out_proj(out.transpose(1, 2).contiguous().view(B, T, C))


@wrong("mask-after-softmax", source="huggingface/pytorch-image-models#2236")
class EvaAttention(nn.Module):
    def __init__(self, dim, num_heads=8, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, attn_mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        if attn_mask is not None:
            attn = attn.masked_fill(~attn_mask.to(torch.bool), 0.0)
        attn = self.attn_drop(attn)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


@wrong("mask-zero-fill", source="georg-wolflein/good-features#1")
class MultipliedMask(Projections, names="wq wk wv wo"):
    def forward(self, x, mask=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.num_heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores * mask
        return self.wo((torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(b, t, c))


@wrong("mask-weak-fill", source="hyunwoongko/transformer#10")
class ScaleDotProductAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k, self.w_v, self.w_concat = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, tensor):
        batch_size, length, d_model = tensor.size()
        return tensor.view(batch_size, length, self.n_head, d_model // self.n_head).transpose(1, 2)

    def forward(self, q, k, v, mask=None, e=1e-12):
        q, k, v = self.split(self.w_q(q)), self.split(self.w_k(k)), self.split(self.w_v(v))
        score = (q @ k.transpose(2, 3)) / math.sqrt(q.size(-1))
        if mask is not None:
            score = score.masked_fill(mask == 0, -e)
        out = F.softmax(score, dim=-1) @ v
        return self.w_concat(out.transpose(1, 2).contiguous().flatten(2))


@wrong("mask-weak-fill", source="awslabs/gluonts#1401")
class ForecastAttention(nn.Module):
    def __init__(self, d_hidden, n_head):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_hidden // n_head
        self.qkv_proj = nn.Linear(d_hidden, 3 * d_hidden)
        self.out_proj = nn.Linear(d_hidden, d_hidden)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv_proj(x).view(b, t, 3, self.n_head, self.d_head).permute(2, 0, 3, 1, 4)
        score = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.d_head)
        mask = torch.arange(t)[None, :] > torch.arange(t)[:, None]
        score = torch.where(mask.to(x.device), torch.full_like(score, 1e-9), score)
        attn = F.softmax(score, dim=-1)
        return self.out_proj(torch.matmul(attn, v).transpose(1, 2).reshape(b, t, -1))


@right("convention", says="added")
class AdditiveMask(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = dropout
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x, attn_mask=None):
        B, T, C = x.shape
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        weights = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
        if attn_mask is not None:
            weights = weights + attn_mask
        weights = F.dropout(F.softmax(weights, dim=-1), p=self.dropout, training=self.training)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(B, T, C))


@wrong("mask-rows")
class PaddedEncoderAttention(Projections, names="query key value fc"):
    def forward(self, x, padding_mask=None):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.num_heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.size(-1))
        if padding_mask is not None:
            energy = energy.masked_fill(padding_mask.unsqueeze(1).unsqueeze(3) == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        return self.fc(torch.matmul(attention, v).transpose(1, 2).reshape(B, T, C))


@wrong("mask-first-only", source="ArrowLuo/CLIP4Clip#22")
class TiledMask(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.attn = nn.MultiheadAttention(d_model, n_head, batch_first=True)

    def forward(self, x, attn_mask=None):
        blocked = None
        if attn_mask is not None:
            mask = attn_mask.to(torch.bool)
            if mask.dim() == 2:
                mask = mask.unsqueeze(1).expand(-1, x.size(1), -1)
            blocked = ~mask.repeat(self.n_head, 1, 1)
        return self.attn(x, x, x, need_weights=False, attn_mask=blocked)[0]


class _Single(nn.Module):
    def __init__(self, embed_dim, head_dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(embed_dim, head_dim) for _ in range(3))

    def forward(self, x, mask=None):
        query, key, value = self.q(x), self.k(x), self.v(x)
        scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return torch.bmm(F.softmax(scores, dim=-1), value)


@wrong("mask-one-head")
class ModuleListAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([_Single(embed_dim, embed_dim // num_heads) for _ in range(num_heads)])
        self.output_linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        parts = [self.heads[0](x, mask)]
        parts += [head(x) for head in self.heads[1:]]
        return self.output_linear(torch.cat(parts, dim=-1))


@wrong("mask-not-passed")
class HeadsWrapper(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.heads = nn.ModuleList([_Single(embed_dim, embed_dim // num_heads) for _ in range(num_heads)])
        self.linear = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        attended = [head(x) for head in self.heads]
        return self.dropout(self.linear(torch.cat(attended, dim=-1)))


@wrong("mask-dropped", also=("scale-d-model",))
class UnmaskedLecture(nn.Module):
    def __init__(self, n_embd, n_head, block_size=32):
        super().__init__()
        self.n_head = n_head
        self.key, self.query, self.value = (nn.Linear(n_embd, n_embd, bias=False) for _ in range(3))
        self.proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = (f(x).view(B, T, self.n_head, -1).transpose(1, 2) for f in (self.key, self.query, self.value))
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = F.softmax(wei, dim=-1)
        return self.proj((wei @ v).transpose(1, 2).reshape(B, T, C))
