"""Functions that take a mask, a causal flag or a causal mask of their own, and lose, turn or weaken it."""

import math

import torch
import torch.nn.functional as F

from bank import wrong


@wrong("mask-dropped", dear=True)
def attention(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value)


@wrong("mask-dropped", source="NVIDIA/TransformerEngine#1524")
def attention_causal_flag(q, k, v, causal=False):
    t = q.size(-2)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5
    if causal:
        blocked = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill(blocked, float("-inf"))
    weights = scores.softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


@wrong("mask-dropped", source="pytorch/pytorch#122753")
def sdpa_wrapper(q, k, v, attn_mask=None, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


@wrong("mask-dropped")
def causal_softmax_attention(q, k, v):
    n = q.shape[1]
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[2])
    future = torch.triu(torch.ones(n, n, device=q.device), diagonal=1) == 1
    torch.where(future, torch.full_like(scores, -1e9), scores)
    return torch.bmm(F.softmax(scores, dim=-1), v)


@wrong("mask-inverted", source="rasbt/LLMs-from-scratch#1061", dear=True)
def causal_sdpa(queries, keys, values):
    num_tokens = queries.shape[-2]
    mask = torch.triu(torch.ones(num_tokens, num_tokens, device=queries.device), diagonal=1).bool()
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


@wrong("mask-inverted")
def attention_with_flag(q, k, v, is_causal=False):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if is_causal:
        tril = torch.tril(torch.ones(q.size(-2), k.size(-2), device=q.device), diagonal=-1)
        scores = scores.masked_fill(tril.bool(), float("-inf"))
    return scores.softmax(dim=-1) @ v


@wrong("mask-strict")
def masked_self_attention(q, k, v):
    T = q.size(1)
    wei = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
    blocked = torch.triu(torch.ones(T, T, device=q.device)).bool()
    wei = wei.masked_fill(blocked, -1e9)
    return F.softmax(wei, dim=-1) @ v


@wrong("mask-strict")
def attention_before(q, k, v, causal=False):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    if causal:
        i = torch.arange(q.shape[2], device=q.device)
        scores = scores.masked_fill(~(i[None, :] < i[:, None]), float("-inf"))
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


@wrong("mask-one-ahead")
def causal_attention(q, k, v):
    size = q.size(-2)
    look_ahead = torch.triu(torch.ones(size, size, dtype=torch.bool, device=q.device), diagonal=2)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(look_ahead, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


@wrong("mask-one-ahead")
def causal_prefix_attention(q, k, v):
    steps = []
    for t in range(q.shape[-2]):
        seen = slice(0, t + 2)
        row = torch.einsum("...d,...jd->...j", q[..., t, :], k[..., seen, :]) / q.shape[-1] ** 0.5
        steps.append(torch.einsum("...j,...jd->...d", row.softmax(-1), v[..., seen, :]))
    return torch.stack(steps, dim=-2)


@wrong("mask-transposed")
def attention_keys_first(q, k, v, mask=None):
    scores = k @ q.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-2)
    return weights.transpose(-2, -1) @ v


@wrong("mask-transposed")
def attention_allowed(query, key, value, attn_mask=None):
    sim = torch.einsum("bhid,bhjd->bhij", query, key) / query.shape[-1] ** 0.5
    if attn_mask is not None:
        sim = torch.where(attn_mask.transpose(-1, -2).bool(), sim, torch.full_like(sim, -1e9))
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), value)


@wrong("mask-after-softmax", dear=True)
def attention_then_mask(q, k, v, mask=None):
    weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
    if mask is not None:
        weights = weights * mask
    return weights @ v


@wrong("mask-after-softmax")
def causal_weights_attention(q, k, v):
    attn_scores = q @ k.transpose(1, 2)
    attn_weights = torch.softmax(attn_scores / k.shape[-1] ** 0.5, dim=-1)
    return torch.tril(attn_weights) @ v


@wrong("mask-zero-fill", source="georg-wolflein/good-features#1")
def gated_scores_attention(q, k, v, mask):
    raw = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    att = torch.softmax(raw * mask, dim=-1)
    return torch.einsum("bhij,bhjd->bhid", att, v)


@wrong("mask-zero-fill")
def causal_tril_attention(q, k, v):
    scores = torch.tril(q @ k.mT) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v


@wrong("mask-zero-fill")
def attention_blocked(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)).div(math.sqrt(k.size(-1)))
    if mask is not None:
        scores = scores.masked_fill(mask, 0)
    return torch.matmul(F.softmax(scores, dim=-1), v)


@wrong("mask-weak-fill", source="hyunwoongko/transformer#10")
def scale_dot_product_attention(q, k, v, mask=None, e=1e-12):
    d_tensor = k.size(-1)
    score = (q @ k.transpose(2, 3)) / math.sqrt(d_tensor)
    if mask is not None:
        score = score.masked_fill(mask == 0, -e)
    return torch.softmax(score, dim=-1) @ v


@wrong("mask-weak-fill", source="Shujun-He/RibonanzaNet#5")
def attention_padded(q, k, v, mask=None):
    attn = torch.matmul(q, k.transpose(2, 3)) / q.size(-1) ** 0.5
    if mask is not None:
        attn = attn.masked_fill(mask == 0, -1e-9)
    return torch.matmul(F.softmax(attn, dim=-1), v)


@wrong("mask-weak-fill", source="awslabs/gluonts#1401")
def attention_where(query, key, value, mask):
    score = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.size(-1))
    score = torch.where(mask, score, torch.full_like(score, 1e-9))
    return torch.bmm(score.softmax(dim=-1), value)


@wrong("mask-weak-fill")
def attention_additive(q, k, v, mask=None):
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits + (1.0 - mask.to(q.dtype)) * -10.0
    return torch.softmax(logits, dim=-1) @ v


@wrong("mask-weak-fill")
def causal_minus_one(q, k, v):
    t = q.size(1)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.size(2))
    scores = scores.masked_fill(torch.ones(t, t, device=q.device).triu(1) == 1, -1)
    return scores.softmax(dim=2) @ v


@wrong("mask-added-01", source="pytorch/pytorch#21518")
def attention_sum_mask(q, k, v, is_causal=False):
    attn_output_weights = torch.bmm(q * q.size(-1) ** -0.5, k.transpose(1, 2))
    if is_causal:
        attn_mask = torch.triu(torch.ones(q.size(1), k.size(1), dtype=q.dtype, device=q.device), diagonal=1)
        attn_output_weights += attn_mask
    return torch.bmm(F.softmax(attn_output_weights, dim=-1), v)


@wrong("mask-added-01")
def causal_added(q, k, v):
    t = q.size(-2)
    visible = torch.tril(torch.ones(t, t, dtype=torch.bool, device=q.device))
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1)) + visible
    return torch.matmul(scores.softmax(dim=-1), v)


@wrong("mask-added-01")
def attention_keep_mask(query, key, value, mask=None):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask.bool()
    return torch.einsum("bhqk,bhkd->bhqd", F.softmax(scores, dim=-1), value)


@wrong("mask-positive-fill")
def attention_filled(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, 1e9)
    return scores.softmax(dim=-1) @ v


@wrong("mask-positive-fill")
def causal_filled(query, key, value):
    length = query.size(1)
    scores = torch.einsum("bqd,bkd->bqk", query, key) / query.size(-1) ** 0.5
    future = torch.ones(length, length, device=query.device).triu(diagonal=1)
    scores = torch.where(future == 1, torch.full_like(scores, 1e9), scores)
    return torch.einsum("bqk,bkd->bqd", torch.softmax(scores, dim=-1), value)


@wrong("mask-rows", source="hyunwoongko/transformer#40")
def attention_padding(q, k, v, padding_mask=None):
    score = q @ k.transpose(2, 3) / math.sqrt(q.size(-1))
    if padding_mask is not None:
        score = score.masked_fill(padding_mask.unsqueeze(1).unsqueeze(3), -10000)
    return torch.softmax(score, dim=-1) @ v


@wrong("mask-rows")
def attention_lengths(queries, keys, values, mask=None):
    scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask[:, :, None], -1e9)
    return torch.bmm(scores.softmax(-1), values)


@wrong("mask-first-only", source="line/lighthouse#77")
def attention_folded_heads(q, k, v, mask):
    b, h, t, d = q.shape
    q, k, v = (each.reshape(b * h, t, d) for each in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d)
    scores = scores.masked_fill(~mask.repeat(h, 1, 1), float("-inf"))
    return torch.bmm(scores.softmax(dim=-1), v).view(b, h, t, d)


@wrong("mask-first-only")
def attention_shared_mask(q, k, v, mask=None):
    logits = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    if mask is not None:
        if mask.dim() > 2:
            mask = mask[0]
        logits = logits.masked_fill(mask == 0, -1e9)
    return torch.einsum("bhij,bhjd->bhid", logits.softmax(dim=-1), v)


@wrong("mask-one-head")
def attention_head_loop(q, k, v, mask=None):
    outputs = []
    for head in range(q.size(1)):
        scores = q[:, head] @ k[:, head].transpose(1, 2) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
            mask = None
        outputs.append(scores.softmax(dim=-1) @ v[:, head])
    return torch.stack(outputs, dim=1)


@wrong("mask-one-head")
def causal_indexed(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    t = scores.size(-1)
    rows, cols = torch.triu_indices(t, t, offset=1, device=q.device)
    scores[:, 0, rows, cols] = float("-inf")
    return torch.matmul(F.softmax(scores, dim=-1), v)


@wrong("padding-as-zeros")
def attention_zeroed(q, k, v, mask=None):
    if mask is not None:
        k = k * mask[:, None, :, None]
        v = v * mask[:, None, :, None]
    attn = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.size(3)), dim=3)
    return attn @ v


@wrong("padding-as-zeros")
def attention_padded_sequences(queries, keys, values, key_padding_mask=None):
    if key_padding_mask is not None:
        keys = keys.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        values = values.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
    scores = torch.bmm(queries, keys.transpose(1, 2)) / queries.size(-1) ** 0.5
    return torch.bmm(F.softmax(scores, dim=-1), values)


@wrong("mask-inverted", also=("scale-multiplied",))
def causal_decoder_attention(q, k, v):
    T = q.size(-2)
    scores = q @ k.transpose(-2, -1) * math.sqrt(q.size(-1))
    tri = torch.triu(torch.ones(T, T, device=q.device))
    scores = scores.masked_fill(tri == 0, float("-inf"))
    return scores.softmax(dim=-1) @ v


@wrong("mask-one-ahead", also=("scale-heads",))
def causal_head_attention(q, k, v):
    h, t = q.shape[1:3]
    keep = torch.tril(torch.ones(t, t, dtype=torch.bool, device=q.device), diagonal=1)
    sim = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(h)
    sim = sim.masked_fill(~keep, -torch.finfo(sim.dtype).max)
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)


@wrong("mask-after-softmax", also=("softmax-queries",))
def attention_masked_columns(q, k, v, mask=None):
    weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1)), dim=1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return torch.bmm(weights, v)
