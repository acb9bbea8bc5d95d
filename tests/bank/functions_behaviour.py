"""Functions, and modules without weights, that are right once and wrong around it: modes, gradients, memory, axes."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from bank import wrong


@wrong("dropout-in-eval")
def attention_regularised(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = F.dropout(scores.softmax(dim=-1), p=0.1)
    return weights @ v


@wrong("dropout-in-eval", source="wenet-e2e/wenet#2699")
class FusedAttention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = dropout

    def forward(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)


@wrong("dropout-before-softmax", source="karpathy/ng-video-lecture#30")
class DotProductAttention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values):
        scores = torch.matmul(queries, keys.transpose(-2, -1)) / math.sqrt(queries.shape[-1])
        return torch.matmul(F.softmax(self.dropout(scores), dim=-1), values)


@wrong("detached")
def attention_no_grad(q, k, v):
    with torch.no_grad():
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        weights = torch.softmax(scores, dim=-1)
    return weights @ v


@wrong("detached")
def attention_stored_weights(query, key, value):
    logits = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.size(-1) ** -0.5
    attn_map = logits.softmax(dim=-1).detach()
    return torch.einsum("bhqk,bhkd->bhqd", attn_map, value)


@wrong("inputs-changed")
def attention_inplace(q, k, v):
    q *= q.size(-1) ** -0.5
    return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


@wrong("inputs-changed")
def attention_boolean_mask(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not_(), float("-inf"))
    return torch.matmul(scores.softmax(dim=-1), v)


@wrong("stateful")
class CachedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = None
        self.values = None

    def forward(self, q, k, v):
        if self.keys is not None and self.keys.shape[:-2] == k.shape[:-2] and self.keys.shape[-1] == k.shape[-1]:
            k = torch.cat([self.keys, k], dim=-2)
            v = torch.cat([self.values, v], dim=-2)
        self.keys, self.values = k.detach(), v.detach()
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


_STEPS = [0]


@wrong("stateful")
def attention_annealed(q, k, v):
    temperature = 0.9 ** _STEPS[0]
    _STEPS[0] += 1
    scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bts,bsd->btd", torch.softmax(scores / temperature, dim=-1), v)


@wrong("batch-as-tokens")
def attention_flattened(q, k, v):
    b, t, d = q.shape
    q, k, v = q.reshape(b * t, d), k.reshape(b * t, d), v.reshape(b * t, d)
    out = torch.softmax(q @ k.T / math.sqrt(d), dim=-1) @ v
    return out.view(b, t, d)


@wrong("batch-as-tokens")
def heads_attention_flattened(q, k, v):
    b, h, t, d = q.shape
    q, k, v = (each.permute(1, 0, 2, 3).reshape(h, b * t, d) for each in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).div(d**0.5).softmax(-1)
    return torch.bmm(weights, v).view(h, b, t, d).transpose(0, 1)


@wrong("absolute-axes")
def attention_rows_and_columns(q, k, v, row_dim=0, col_dim=1):
    sims = torch.matmul(q, k.transpose(dim0=row_dim, dim1=col_dim))
    scaled_sims = sims / torch.tensor(k.size(col_dim) ** 0.5)
    attention_percents = F.softmax(scaled_sims, dim=col_dim)
    return torch.matmul(attention_percents, v)
