"""Functions whose weights are normalised over another axis, in another way, or not at all."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from bank import wrong


@wrong("softmax-queries", source="labmlai/annotated_deep_learning_paper_implementations#146")
def unet_attention(q, k, v):
    attn = torch.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5
    attn = attn.softmax(dim=1)
    return torch.einsum("bij,bjd->bid", attn, v)


@wrong("softmax-queries", source="FudanNLP/fastNLP#254")
def encoder_attention(Q, K, V, mask_out=None):
    output = torch.matmul(Q, K.transpose(2, 3)) / math.sqrt(K.size(3))
    if mask_out is not None:
        output = output.masked_fill(mask_out, -1e9)
    output = nn.Softmax(dim=2)(output)
    return torch.matmul(output, V)


@wrong("softmax-queries", source="nerdai/llms-from-scratch-rs#30")
def attention_normalised_by_hand(q, k, v):
    logits = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    e = (logits - logits.max()).exp()
    return (e / e.sum(dim=-2, keepdim=True)) @ v


@wrong("softmax-heads")
def multi_head_core(query, key, value):
    scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.size(3))
    weights = F.softmax(scores, dim=1)
    return torch.matmul(weights, value)


@wrong("softmax-heads")
def heads_last_attention(q, k, v):
    sims = torch.einsum("bhid,bhjd->bijh", q, k).div(q.size(-1) ** 0.5)
    weights = sims.softmax(dim=-1)
    return torch.einsum("bijh,bhjd->bhid", weights, v)


@wrong("softmax-batch")
def attention_first_axis(q, k, v):
    score = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(2))
    p = torch.softmax(score, dim=0)
    return torch.bmm(p, v)


@wrong("softmax-all")
def attention_map(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    weights = scores.flatten(2).softmax(dim=-1).view_as(scores)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


@wrong("softmax-all")
def attention_per_sample(queries, keys, values):
    outputs = []
    for q, k, v in zip(queries, keys, values, strict=True):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        exps = torch.exp(scores - scores.amax(dim=(-2, -1), keepdim=True))
        outputs.append(exps / exps.sum(dim=(-2, -1), keepdim=True) @ v)
    return torch.stack(outputs)


@wrong("softmax-missing", dear=True)
def attention_products(q, k, v):
    weights = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    return torch.matmul(weights, v)


@wrong("softmax-twice", dear=True)
def attention_probabilities(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
    attention_probs = nn.Softmax(dim=-1)(scores)
    weights = F.softmax(attention_probs, dim=-1)
    return weights @ v


@wrong("softmax-log")
def attention_stable(q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    weights = F.log_softmax(scores, dim=-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


@wrong("softmax-unnormalised")
def attention_exponentials(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    scores = scores - scores.max(dim=-1, keepdim=True).values
    weights = torch.exp(scores)
    return weights @ v


@wrong("softmax-unnormalised")
def attention_row_by_row(q, k, v):
    out = torch.zeros_like(q)
    for i in range(q.size(-2)):
        for j in range(k.size(-2)):
            s = (q[..., i, :] * k[..., j, :]).sum(-1, keepdim=True) / q.size(-1) ** 0.5
            out[..., i, :] = out[..., i, :] + s.exp() * v[..., j, :]
    return out


@wrong("softmax-l1", dear=True)
def attention_shares(Q, K, V):
    scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(Q.size(-1))
    percents = scores / scores.sum(dim=-1, keepdim=True)
    return torch.matmul(percents, V)


@wrong("softmax-missing", also=("no-scale",), source="flexflow/flexflow-train#467")
def bert_proxy_attention(q, k, v):
    logits = torch.matmul(q, k.transpose(-2, -1))
    return torch.matmul(logits, v)


@wrong("softmax-heads", also=("scale-d-model",))
def head_competition(q, k, v):
    width = q.size(1) * q.size(3)
    energy = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(width)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(energy, dim=1), v)
