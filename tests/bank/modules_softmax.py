"""Wrong modules: the axis of the softmax, and what stands in its place."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import Projections, wrong


@wrong("softmax-queries", source="labmlai/annotated_deep_learning_paper_implementations#146")
class AttentionBlock(nn.Module):
    def __init__(self, n_channels, n_heads=1, d_k=None):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = n_channels // n_heads if d_k is None else d_k
        self.scale = self.d_k**-0.5
        self.projection = nn.Linear(n_channels, n_heads * self.d_k * 3)
        self.output = nn.Linear(n_heads * self.d_k, n_channels)

    def forward(self, x):
        batch_size, seq, _ = x.shape
        q, k, v = self.projection(x).chunk(3, dim=-1)
        q = q.view(batch_size, seq, self.n_heads, self.d_k)
        k = k.view(batch_size, seq, self.n_heads, self.d_k)
        v = v.view(batch_size, seq, self.n_heads, self.d_k)
        attn = torch.einsum("bihd,bjhd->bijh", q, k) * self.scale
        attn = attn.softmax(dim=1)
        res = torch.einsum("bijh,bjhd->bihd", attn, v)
        return self.output(res.reshape(batch_size, seq, self.n_heads * self.d_k))


@wrong("softmax-queries", source="FudanNLP/fastNLP#254")
class DotAttention(nn.Module):
    def __init__(self, input_size, num_head, dropout=0.0):
        super().__init__()
        self.num_head = num_head
        self.key_size = input_size // num_head
        self.q_in, self.k_in, self.v_in, self.out = (nn.Linear(input_size, input_size) for _ in range(4))
        self.softmax = nn.Softmax(dim=2)
        self.drop = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        batch, length, _ = query.size()
        q = self.q_in(query).view(batch, length, self.num_head, self.key_size).transpose(1, 2)
        k = self.k_in(key).view(batch, -1, self.num_head, self.key_size).transpose(1, 2)
        v = self.v_in(value).view(batch, -1, self.num_head, self.key_size).transpose(1, 2)
        score = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.key_size)
        if mask is not None:
            score = score.masked_fill(mask == 0, -1e9)
        heads = torch.matmul(self.drop(self.softmax(score)), v)
        return self.out(heads.transpose(1, 2).contiguous().view(batch, length, -1))


class _ImageHead(nn.Module):
    def __init__(self, embed_dim, head_size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(embed_dim, head_size) for _ in range(3))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = torch.matmul(q, k.transpose(1, 2)) / k.shape[2] ** 0.5
        return torch.matmul(F.softmax(scores, dim=1), v)


@wrong("softmax-queries", source="nerminnuraydogan/vision-transformer#1")
class ImageAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention_heads = nn.ModuleList([_ImageHead(embed_dim, embed_dim // num_heads) for _ in range(num_heads)])
        self.projection = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        return self.projection(torch.cat([head(x) for head in self.attention_heads], dim=-1))


@wrong("softmax-batch", source="PetrochukM/PyTorch-NLP#2")
class DefaultAxisSoftmax(nn.Module):
    def __init__(self, dimensions):
        super().__init__()
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(dimensions, dimensions, bias=False) for _ in range(3))
        self.softmax = nn.Softmax(dim=0)

    def forward(self, x):
        q, k, v = self.linear_q(x), self.linear_k(x), self.linear_v(x)
        attention_scores = torch.bmm(q, k.transpose(1, 2).contiguous()) / math.sqrt(q.size(-1))
        attention_weights = self.softmax(attention_scores)
        return torch.bmm(attention_weights, v)


@wrong("softmax-missing")
class ScoresOnly(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (w(x).view(B, T, self.num_heads, -1).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        attention = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        attention = self.dropout(attention)
        return self.w_o((attention @ v).transpose(1, 2).reshape(B, T, C))


@wrong("softmax-twice")
class DoubleSoftmax(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_out, bias=qkv_bias) for _ in range(3))
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.softmax = nn.Softmax(dim=-1)

    def attention_weights(self, queries, keys):
        return F.softmax(queries @ keys.transpose(2, 3) / keys.shape[-1] ** 0.5, dim=-1)

    def forward(self, x):
        b, n, _ = x.shape
        keys = self.W_key(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        queries, values = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.W_query, self.W_value))
        weights = self.dropout(self.softmax(self.attention_weights(queries, keys)))
        return self.out_proj((weights @ values).transpose(1, 2).reshape(b, n, -1))


@wrong("softmax-log")
class LogSoftmaxAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = F.log_softmax(q @ k.transpose(-2, -1) * q.size(-1) ** -0.5, dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


@wrong("softmax-l1")
class RatioAttention(Projections, names="wq wk wv wo"):
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).reshape(b, t, self.num_heads, -1) for f in (self.wq, self.wk, self.wv))
        sims = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.size(-1))
        percents = sims / sims.sum(dim=-1, keepdim=True)
        return self.wo(torch.einsum("bhqk,bkhd->bqhd", percents, v).reshape(b, t, d))
