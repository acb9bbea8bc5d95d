"""Blocks and whole decoders: attention with its residuals, norms and feed-forward."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from bank import right


class _Attention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.q_linear, self.k_linear, self.v_linear, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        q = self.q_linear(q).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (self.k_linear(k), self.v_linear(v)))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.out((self.dropout(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2))


@right("right", dear=True)
class PreNormEncoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = _Attention(d_model, num_heads, dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model), nn.Dropout(dropout))

    def forward(self, x, mask=None):
        normed = self.ln1(x)
        x = x + self.attn(normed, normed, normed, mask)
        return x + self.ff(self.ln2(x))


@right("right")
class PostNormEncoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff=2048, dropout=0.1):
        super().__init__()
        self.self_attn = _Attention(d_model, num_heads, dropout)
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, mask=None):
        src = self.norm1(src + self.dropout(self.self_attn(src, src, src, mask)))
        return self.norm2(src + self.dropout(self.linear2(F.relu(self.linear1(src)))))


@right("right")
class BlockWithItsOwnProjections(nn.Module):
    """Its attention is no module of its own."""

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x, mask=None):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(attended.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.linear2(F.relu(self.linear1(x))))


@right("right")
class PostNormDecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.self_attn = _Attention(d_model, num_heads, dropout)
        self.cross_attn = _Attention(d_model, num_heads, dropout)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, enc_output, src_mask=None, tgt_mask=None):
        x = self.norm1(x + self.dropout(self.self_attn(x, x, x, tgt_mask)))
        x = self.norm2(x + self.dropout(self.cross_attn(x, enc_output, enc_output, src_mask)))
        return self.norm3(x + self.dropout(self.feed_forward(x)))


@right("right")
class PreNormDecoderBlock(nn.Module):
    """Causal by itself; the memory is read as it comes."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.self_attn, self.cross_attn = _Attention(d_model, num_heads), _Attention(d_model, num_heads)
        self.ln_1, self.ln_2, self.ln_3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x, memory):
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        h = self.ln_1(x)
        x = x + self.self_attn(h, h, h, causal)
        x = x + self.cross_attn(self.ln_2(x), memory, memory)
        return x + self.mlp(self.ln_3(x))


class _CausalAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.key, self.query, self.value, self.proj = (nn.Linear(n_embd, n_embd) for _ in range(4))
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q, v = (f(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for f in (self.query, self.value))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        return self.proj((F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C))


@right("right")
class CausalBlock(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.ln1, self.ln2 = (nn.LayerNorm(n_embd) for _ in range(2))
        self.attn = _CausalAttention(n_embd, n_head, block_size)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class _FusedCausalAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


@right("convention", says="thirds")
class FusedCausalBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = _FusedCausalAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


@right("right")
class LanguageModel(nn.Module):
    """Learned positions, pre-norm blocks, a head of its own; ids to logits."""

    def __init__(self, vocab_size, n_embd, n_head, n_layer, block_size):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[CausalBlock(n_embd, n_head, block_size) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx):
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.token_embedding_table(idx) + self.position_embedding_table(positions)
        return self.lm_head(self.ln_f(self.blocks(x)))


@right("convention", says="thirds")
class LanguageModelWithConfig(nn.Module):
    """The head shares the embedding's weights; targets give a loss beside the logits."""

    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([FusedCausalBlock(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


@right("right")
class DecoderOnlyTransformer(nn.Module):
    """Sinusoidal positions, post-norm blocks."""

    def __init__(self, num_tokens, d_model, num_heads, num_layers=2, max_len=64):
        super().__init__()
        self.d_model = d_model
        self.we = nn.Embedding(num_tokens, d_model)
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("pe", torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1))
        self.layers = nn.ModuleList(PostNormEncoderBlock(d_model, num_heads, 4 * d_model) for _ in range(num_layers))
        self.fc_layer = nn.Linear(d_model, num_tokens)

    def forward(self, token_ids):
        T = token_ids.size(-1)
        x = self.we(token_ids) * math.sqrt(self.d_model) + self.pe[:T]
        mask = torch.tril(torch.ones((T, T), device=token_ids.device))
        for layer in self.layers:
            x = layer(x, mask)
        return self.fc_layer(x)


class _RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class _RotaryAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in self.inputs())
        q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in (q.chunk(2, -1), k.chunk(2, -1)))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def inputs(self):
        return self.q_proj, self.k_proj, self.v_proj


class _RotaryBlock(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = _RMSNorm(dim), _RMSNorm(dim)
        self.self_attn = _RotaryAttention(dim, n_heads)
        self.gate_proj, self.up_proj = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down_proj = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


@right("design", says="rotary")
class RotaryLanguageModel(nn.Module):
    def __init__(self, vocab_size, dim, n_heads, n_layers):
        super().__init__()
        self.half = dim // n_heads // 2
        self.embed_tokens = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(_RotaryBlock(dim, n_heads) for _ in range(n_layers))
        self.norm = _RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        rates = 10000 ** (-torch.arange(self.half, dtype=x.dtype, device=x.device) / self.half)
        angles = torch.outer(torch.arange(input_ids.size(1), dtype=x.dtype, device=x.device), rates)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.lm_head(self.norm(x))


@right("right")
class RegularisedInTraining(nn.Module):
    """Of the hidden numbers of its feed-forward network some are dropped, in train() alone."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = _Attention(d_model, num_heads, dropout)
        self.fc1, self.fc2 = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.dropout = dropout

    def forward(self, x):
        normed = self.ln1(x)
        x = x + self.attn(normed, normed, normed)
        hidden = F.gelu(self.fc1(self.ln2(x)))
        return x + self.fc2(F.dropout(hidden, self.dropout, training=self.training))
