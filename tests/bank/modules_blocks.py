"""Wrong modules: whole blocks and decoders."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import wrong


class _SelfAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None, causal=False):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if causal:
            scores = scores.masked_fill(torch.ones(T, T, device=x.device).triu(1) == 1, float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, C))


class _MLP(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.fc1 = nn.Linear(d_model, d_ff)
        self.fc2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


@wrong("residual-missing")
class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = _SelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = _MLP(n_embd, 4 * n_embd)

    def forward(self, x):
        x = self.attn(self.ln_1(x), causal=True)
        x = x + self.mlp(self.ln_2(x))
        return x


@wrong("residual-missing")
class EncoderBlock(nn.Module):
    def __init__(self, input_dim, num_heads, dim_feedforward, dropout=0.0):
        super().__init__()
        self.self_attn = _SelfAttention(input_dim, num_heads)
        self.linear_net = nn.Sequential(
            nn.Linear(input_dim, dim_feedforward),
            nn.Dropout(dropout),
            nn.ReLU(inplace=True),
            nn.Linear(dim_feedforward, input_dim),
        )
        self.norm1, self.norm2 = (nn.LayerNorm(input_dim) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        attn_out = self.self_attn(x, mask=mask)
        x = self.norm1(x + self.dropout(attn_out))
        linear_out = self.linear_net(x)
        return self.norm2(self.dropout(linear_out))


@wrong("residual-of-norm", source="Howuhh/faster-trajectory-transformer#3")
class TransformerBlock(nn.Module):
    def __init__(self, embedding_dim, num_heads, dropout=0.1):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(embedding_dim) for _ in range(2))
        self.drop = nn.Dropout(dropout)
        self.attention = nn.MultiheadAttention(embedding_dim, num_heads, dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(embedding_dim, 4 * embedding_dim), nn.GELU(), nn.Linear(4 * embedding_dim, embedding_dim)
        )

    def forward(self, x):
        T = x.size(1)
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        x = self.norm1(x)
        x = x + self.drop(self.attention(x, x, x, attn_mask=causal, need_weights=False)[0])
        return x + self.drop(self.mlp(self.norm2(x)))


@wrong("residual-of-norm", source="lbcb-sci/RiNALMo#9")
class PreNormEncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward):
        super().__init__()
        self.attn_norm = nn.LayerNorm(d_model)
        self.mh_attn = _SelfAttention(d_model, nhead)
        self.out_norm = nn.LayerNorm(d_model)
        self.transition = _MLP(d_model, dim_feedforward)

    def forward(self, x, key_padding_mask=None):
        mask = None if key_padding_mask is None else (~key_padding_mask)[:, None, None, :]
        x = self.attn_norm(x)
        residual = x
        x = residual + self.mh_attn(x, mask=mask)
        return x + self.transition(self.out_norm(x))


@wrong("ffn-skipped")
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.self_attention = _SelfAttention(d_model, num_heads)
        self.norm1 = nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout1, self.dropout2 = (nn.Dropout(dropout) for _ in range(2))

    def forward(self, x, mask=None):
        _x = x
        x = self.self_attention(x, mask=mask)
        x = self.norm1(_x + self.dropout1(x))
        _x = x
        self.ffn(x)
        return self.norm2(_x + self.dropout2(x))


@wrong("ffn-skipped")
class GPTBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = _SelfAttention(config.n_embd, config.n_head)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = _MLP(config.n_embd, 4 * config.n_embd)

    def forward(self, x):
        return x + self.attn(self.ln_1(x), causal=True)


@wrong("mask-not-passed", source="facebookresearch/fairseq#1682")
class TransformerEncoderLayer(nn.Module):
    def __init__(self, embed_dim, num_heads, ffn_embed_dim, dropout=0.0):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.fc1 = nn.Linear(embed_dim, ffn_embed_dim)
        self.fc2 = nn.Linear(ffn_embed_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)

    def forward(self, x, attn_mask=None):
        residual = x
        if attn_mask is not None:
            attn_mask = attn_mask.masked_fill(attn_mask.to(torch.bool), -1e8)
        x, _ = self.self_attn(query=x, key=x, value=x, need_weights=False)
        x = self.self_attn_layer_norm(residual + x)
        residual = x
        x = self.fc2(F.relu(self.fc1(x)))
        return self.final_layer_norm(residual + x)


class _Layer(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(d_model)
        self.attn = _SelfAttention(d_model, num_heads)
        self.ln2 = nn.LayerNorm(d_model)
        self.mlp = _MLP(d_model, 4 * d_model)

    def forward(self, x, mask=None, causal=False):
        x = x + self.attn(self.ln1(x), mask=mask, causal=causal)
        return x + self.mlp(self.ln2(x))


@wrong("mask-not-passed")
class Encoder(nn.Module):
    def __init__(self, d_model, num_heads, num_layers):
        super().__init__()
        self.layers = nn.ModuleList([_Layer(d_model, num_heads) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class _NanoAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head = config.n_head
        self.register_buffer("tril", torch.tril(torch.ones(config.block_size, config.block_size)))

    def weights(self, q, k):
        T = q.size(-2)
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        return F.softmax(att.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = self.weights(q, k) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class _NoScale(_NanoAttention):
    def weights(self, q, k):
        T = q.size(-2)
        att = q @ k.transpose(-2, -1)
        return F.softmax(att.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1)


class _NoMask(_NanoAttention):
    def weights(self, q, k):
        return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)


class _GPTLayer(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = _MLP(config.n_embd, 4 * config.n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class _Decoder(nn.Module):
    attention = _NanoAttention

    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([_GPTLayer(config, self.attention) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@wrong("no-scale")
class UnscaledGPT(_Decoder):
    attention = _NoScale


@wrong("mask-dropped")
class LeakyGPT(_Decoder):
    attention = _NoMask


@wrong("merge-without-transpose")
class PostNormEncoder(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, intermediate_size):
        super().__init__()
        self.num_heads = num_attention_heads
        self.query, self.key, self.value, self.dense = (nn.Linear(hidden_size, hidden_size) for _ in range(4))
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.output_norm = nn.LayerNorm(hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        B, T, C = hidden_states.shape
        q, k, v = (
            f(hidden_states).view(B, T, self.num_heads, -1).permute(0, 2, 1, 3)
            for f in (self.query, self.key, self.value)
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -10000.0
        context = torch.matmul(scores.softmax(dim=-1), v).reshape(B, T, C)
        attended = self.attention_norm(hidden_states + self.dense(context))
        return self.output_norm(attended + self.output(F.gelu(self.intermediate(attended))))


@wrong("inputs-changed")
class InPlaceBlock(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attn = _SelfAttention(d_model, num_heads)
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = _MLP(d_model, 4 * d_model)

    def forward(self, x):
        x += self.attn(self.norm1(x))
        x += self.mlp(self.norm2(x))
        return x


@wrong("residual-missing", also=("no-scale",))
class BareBlock(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = _MLP(dim, 2 * dim)

    def attend(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x):
        x = self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


@wrong("dropout-in-eval")
class RegularisedBlock(nn.Module):
    """Of the hidden numbers of its feed-forward network some are dropped, in eval() as well."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = _SelfAttention(d_model, num_heads)
        self.fc1, self.fc2 = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.dropout = dropout

    def regularised(self, x):
        return F.dropout(x, self.dropout)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(self.regularised(F.gelu(self.fc1(self.ln2(x)))))


class _DroppingAttention(_SelfAttention):
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        weights = F.dropout((q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1), 0.1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


@wrong("dropout-in-eval")
class BlockOfDroppedWeights(RegularisedBlock):
    """The weights of its attention are dropped; of the feed-forward network nothing is."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.attn = _DroppingAttention(d_model, num_heads)

    def regularised(self, x):
        return x
