"""Wrong modules: the scores, the output, and how the module behaves."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import Projections, wrong


@wrong("scores-transposed")
class KeysTimesQueries(Projections, names="q_proj k_proj v_proj o_proj"):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.num_heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        scores = torch.matmul(k, q.transpose(-2, -1)) / math.sqrt(q.size(-1))
        out = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, C))


@wrong("weights-transposed", source="heykeetae/Self-Attention-GAN#11")
class ChannelFirstAttention(nn.Module):
    def __init__(self, in_dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(in_dim, in_dim) for _ in range(3))
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        proj_query = self.query(x)
        proj_key = self.key(x).permute(0, 2, 1)
        energy = torch.bmm(proj_query, proj_key) / math.sqrt(x.size(-1))
        attention = self.softmax(energy)
        proj_value = self.value(x).permute(0, 2, 1)
        out = torch.bmm(proj_value, attention)
        return out.permute(0, 2, 1)


@wrong("weights-transposed")
class TransposedWeights(Projections, names="wq wk wv wo", bias=False):
    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)) for f in (self.wq, self.wk, self.wv))
        attn = torch.einsum("bihd,bjhd->bhij", q, k).mul(q.size(-1) ** -0.5).softmax(dim=-1)
        out = torch.einsum("bhij,bihd->bjhd", attn, v)
        return self.wo(out.flatten(2))


@wrong("output-mean")
class MeanAttention(nn.Module):
    def __init__(self, dim, num_heads=8):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = (t.view(B, N, self.num_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        attn = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).sum(dim=-1, keepdim=True)
        attn = attn.expand(-1, -1, -1, N).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


@wrong("out-projection-skipped", source="sooftware/attentions#1")
class UnusedOutput(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection, self.value_projection, self.out_projection = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, query, key, value, mask=None):
        batch_size = query.size(0)
        query = self.query_projection(query).view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)
        key = self.key_projection(key).view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)
        value = self.value_projection(value).view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)
        score = torch.matmul(query, key.transpose(2, 3)) / self.head_dim**0.5
        if mask is not None:
            score = score.masked_fill(mask == 0, -1e9)
        context = torch.matmul(F.softmax(score, dim=-1), value)
        return context.transpose(1, 2).contiguous().view(batch_size, -1, self.num_heads * self.head_dim)


@wrong("out-projection-skipped")
class DiscardedProjection(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(B, T, C)
        self.proj(out)
        return self.dropout(out)


@wrong("out-projection-untransposed")
class MatmulOutput(Projections, names="w_q w_k w_v w_o"):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.num_heads, -1).transpose(1, 2) for f in (self.w_q, self.w_k, self.w_v))
        heads = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v
        concat = heads.transpose(1, 2).reshape(B, T, C)
        return concat @ self.w_o.weight + self.w_o.bias


@wrong("out-projection-twice")
class ProjectedTwice(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def attend(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x):
        return self.resid_dropout(self.c_proj(self.attend(x)))


@wrong("dropout-in-eval", source="karpathy/nanoGPT#240")
class FlashSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.2):
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.dropout, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


@wrong("dropout-before-softmax", source="karpathy/ng-video-lecture#30")
class EarlyDropout(nn.Module):
    def __init__(self, n_embd, head_size, block_size=64, dropout=0.2):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        T = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(wei)
        wei = F.softmax(wei, dim=-1)
        return wei @ v


@wrong("detached")
class FrozenWeights(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.attention_weights = None
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.num_heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        self.attention_weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1).detach()
        return self.wo((self.attention_weights @ v).transpose(1, 2).reshape(B, T, C))


@wrong("detached")
class NoGradScores(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        with torch.no_grad():
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.size(-1) ** -0.5
            probs = scores.softmax(dim=-1)
        return self.out_proj((probs @ v).transpose(1, 2).reshape(B, T, C))


@wrong("inputs-changed")
class PaddingEraser(Projections, names="q_proj k_proj v_proj out_proj"):
    def forward(self, query, key, value, key_padding_mask=None):
        B, T, C = query.shape
        if key_padding_mask is not None:
            value.masked_fill_(key_padding_mask.unsqueeze(-1), 0.0)
        q = self.q_proj(query).view(B, T, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(key).view(B, key.size(1), self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(value).view(B, key.size(1), self.num_heads, -1).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
        return self.out_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, C))


@wrong("inputs-changed")
class ResidualAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v)
        x += self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x


@wrong("stateful")
class CoolingAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (embed_dim // num_heads) ** -0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q = self.q_proj(x).reshape(b, t, self.num_heads, -1).transpose(1, 2) * self.scaling
        self.scaling *= q.size(-1) ** -0.5
        k, v = (f(x).reshape(b, t, self.num_heads, -1).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        return self.out_proj((torch.softmax(q @ k.mT, dim=-1) @ v).transpose(1, 2).reshape(b, t, c))


@wrong("stateful")
class RemembersByADefault(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, seen=[]):  # noqa: B006
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen.append((k, v))
        k, v = (torch.cat(each, 2) for each in zip(*seen, strict=True))
        later = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(k.size(2) - q.size(2) + 1)
        weights = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(later, float("-inf")).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


@wrong("batch-as-tokens")
class FlatSelfAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x):
        flat = x.flatten(0, -2)
        q, k, v = self.query(flat), self.key(flat), self.value(flat)
        attention = F.softmax(q @ k.t() / q.size(-1) ** 0.5, dim=1)
        return (attention @ v).reshape(x.shape)
