"""Attentions whose weights stand in other places, and some that compute something else: what is compared in pairs."""

import math
from importlib import import_module

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS = 12, 3
EACH = WIDTH // HEADS


def attended(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ v


def joined(heads):
    return heads.transpose(1, 2).flatten(2)


class Plain(nn.Module):
    """Four `nn.Linear`, as BERT's."""

    def __init__(self, bias=True, width=WIDTH, heads=HEADS):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def positions(self, x):
        return x

    def forward(self, x, mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.o(joined(attended(self.positions(q), self.positions(k), v, mask)))


class ChannelsFirst(Plain):
    """Channel c of head h is number c * heads + h: the heads stand beside one another."""

    def split(self, x):
        return x.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)


class Timm(nn.Module):
    """One `nn.Linear` for (3, heads, width of a head), and the fused attention."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, EACH)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(joined(F.scaled_dot_product_attention(q, k, v)))


class ByHead(nn.Module):
    """q, k and v of each head beside one another, as GPT-NeoX's, stored (in, out), as Conv1D does."""

    def __init__(self):
        super().__init__()
        self.packed = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH))
        self.packed_bias = nn.Parameter(torch.randn(3 * WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        packed = torch.addmm(self.packed_bias, x.flatten(0, 1), self.packed).unflatten(0, x.shape[:2])
        q, k, v = packed.unflatten(-1, (HEADS, 3 * EACH)).transpose(1, 2).chunk(3, -1)
        return self.out(joined(attended(q, k, v)))


class HeadModules(nn.Module):
    """One module for each head."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(WIDTH, EACH) for _ in range(3))

        def forward(self, x):
            q, k, v = self.query(x), self.key(x), self.value(x)
            return (q @ k.transpose(-2, -1) * EACH**-0.5).softmax(-1) @ v

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(self.Head() for _ in range(HEADS))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class Einsum(nn.Module):
    """Matrices (heads, in, width of a head), biases (heads, width of a head), in the style of einsum."""

    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(HEADS, WIDTH, EACH)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.randn(HEADS, EACH)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.randn(HEADS, EACH, WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        q, k, v = (
            torch.einsum("btd,hde->bthe", x, weight) + bias
            for weight, bias in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / math.sqrt(EACH)
        mixed = torch.einsum("bhqk,bkhe->bqhe", scores.softmax(-1), v)
        return torch.einsum("bqhe,hed->bqd", mixed, self.W_O) + self.b_O


class Unnamed(nn.Module):
    """Names that tell nothing, k before q, and a softmax written out."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.b = nn.Parameter(torch.randn(2, WIDTH))
        self.c, self.d = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        k, q = (x @ self.a[n] + self.b[n] for n in (0, 1))
        q, k, v = (each.view(*x.shape[:2], HEADS, EACH).permute(0, 2, 1, 3) for each in (q, k, self.c(x)))
        scores = k @ q.mT / math.sqrt(EACH)  # (keys, queries)
        weights = (scores - scores.amax(-2, keepdim=True)).exp()
        return self.d(joined((weights / weights.sum(-2, keepdim=True)).mT @ v))


def torch_own():
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)


class Interleaved(Plain):
    """Rotary pairs are channels 2i and 2i + 1, as in Meta's Llama."""

    def positions(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * 10_000 ** (-torch.arange(0, EACH, 2).double() / EACH)
        turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)


class Halves(Plain):
    """Rotary pairs are channels i and i + width / 2, as in transformers' Llama."""

    def positions(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * 10_000 ** (-torch.arange(0, EACH, 2).double() / EACH)
        one, other = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1).to(x.dtype)


class GivenTurns(Plain):
    """Rotary positions as `Halves`, of a cos and a sin that are handed over: (1, tokens, width of a head)."""

    def forward(self, x, cos, sin):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        q, k = (each * cos + torch.cat((-each[..., EACH // 2 :], each[..., : EACH // 2]), -1) * sin for each in (q, k))
        return self.o(joined(attended(q, k, v)))


class Normed(Halves):
    """Queries and keys are normed, with a gain for each channel of a head."""

    def __init__(self):
        super().__init__(bias=False)
        self.norm_q, self.norm_k = nn.RMSNorm(EACH, eps=1e-6), nn.RMSNorm(EACH, eps=1e-6)

    def forward(self, x, mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        q, k = self.positions(self.norm_q(q)), self.positions(self.norm_k(k))
        return self.o(joined(attended(q, k, v, mask)))


class NormedPairs(Normed):
    positions = Interleaved.positions


class Sink(Plain):
    """A number for each head takes part in the softmax."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(HEADS))

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        sink = self.sinks[:, None, None].expand(len(x), -1, x.shape[1], 1)
        scores = torch.cat((q @ k.mT / math.sqrt(EACH), sink), -1)
        return self.o(joined(scores.softmax(-1)[..., :-1] @ v))


class ChannelsFirstSink(Sink):
    split = ChannelsFirst.split


class Residual(Plain):
    """Norms its input, and adds it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + super().forward(self.norm(x))


class ChannelsFirstResidual(Residual):
    split = ChannelsFirst.split


class ALiBi(Plain):
    slopes = (0.5, 0.25, 0.125)

    def forward(self, x):
        at = torch.arange(x.shape[1])
        return super().forward(x, -torch.tensor(self.slopes)[:, None, None] * (at[:, None] - at).abs())


class OtherHeadsFirst(ALiBi):
    slopes = (0.25, 0.125, 0.5)


class Unscaled(Plain):
    """Nothing is left of the division by the root of the width."""

    def positions(self, x):
        return x * EACH**0.25


class Future(Plain):
    """Causal, and one key too far."""

    def forward(self, x):
        return super().forward(x, torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(2))


class Causal(Plain):
    def forward(self, x):
        return super().forward(x, torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1))


class Halved(Plain):
    """Weights that sum to one half."""

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = (q @ k.mT / math.sqrt(EACH)).softmax(-1)
        return self.o(joined(weights.square() @ v))


class NoOutput(Plain):
    def __init__(self):
        super().__init__()
        self.o = nn.Identity()


class SharedHeads(Plain):
    """All heads share one key and one value of a token."""

    def __init__(self):
        super().__init__()
        self.k, self.v = nn.Linear(WIDTH, EACH), nn.Linear(WIDTH, EACH)

    def split(self, x):
        return x.unflatten(-1, (-1, EACH)).transpose(1, 2)


class MultiQuery(SharedHeads):
    """The queries of all heads and tokens are the rows of one matrix, as GPTBigCode's."""

    def forward(self, x):
        q = self.q(x).unflatten(-1, (HEADS, -1)).flatten(1, 2)
        return self.o(attended(q, self.k(x), self.v(x)).unflatten(1, (-1, HEADS)).flatten(2))


class OneHead(nn.Module):
    """It refuses several heads, rotates pairs of channels, and adds what it attends to to its input."""

    def __init__(self, d_model, num_heads, d_k, d_v):
        super().__init__()
        if num_heads != 1:
            raise NotImplementedError("one head alone")
        self.q, self.k, self.v = nn.Linear(d_model, d_k), nn.Linear(d_model, d_k), nn.Linear(d_model, d_v)

    def forward(self, x):
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 10
        turns = torch.polar(torch.ones_like(angles), angles)
        q, k = (
            torch.view_as_real(torch.view_as_complex(each(x).unflatten(-1, (-1, 2))) * turns).flatten(2)
            for each in (self.q, self.k)
        )
        return x + attended(q, k, self.v(x))


class Fewer(Plain):
    def __init__(self):
        super().__init__(heads=2)


def tokens_second(q, k, v):
    """(batch, tokens, heads, width)."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def scaled_by_keys(q, k, v):
    return (q @ k.mT / math.sqrt(k.shape[-2])).softmax(-1) @ v


class Meta(nn.Module):
    """Llama as Meta published it: (x, start_pos, freqs_cis, mask), pairs of neighbours, in float32 on the way."""

    def __init__(self):
        super().__init__()
        self.wq, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(WIDTH, EACH, bias=False) for _ in range(2))

    def forward(self, x, start_pos, freqs_cis, mask):
        q, k, v = (each.unflatten(-1, (-1, EACH)) for each in (self.wq(x), self.wk(x), self.wv(x)))
        q, k = (
            torch.view_as_real(torch.view_as_complex(each.float().unflatten(-1, (-1, 2))) * freqs_cis[:, None])
            .flatten(3)
            .type_as(x)
            for each in (q, k)
        )
        k, v = (each.repeat_interleave(HEADS, 2).transpose(1, 2) for each in (k, v))
        scores = q.transpose(1, 2) @ k.mT / math.sqrt(EACH)
        scores = scores if mask is None else scores + mask
        return self.wo(joined(scores.float().softmax(-1).type_as(q) @ v))


def of_transformers(name, **sizes):
    def made():
        package, kind = {
            "Bert": ("bert", "BertSelfAttention"),
            "GPT2": ("gpt2", "GPT2Attention"),
            "Llama": ("llama", "LlamaAttention"),
            "GPTNeoX": ("gpt_neox", "GPTNeoXAttention"),
            "Falcon": ("falcon", "FalconAttention"),
            "Phi3": ("phi3", "Phi3Attention"),
            "T5": ("t5", "T5Attention"),
        }[name]
        import transformers

        config = getattr(transformers, f"{name}Config")(**sizes)
        kind = getattr(import_module(f"transformers.models.{package}.modeling_{package}"), kind)
        return kind(config, layer_idx=0)

    made.__name__ = name
    return made


HF = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
BERT, GPT2 = of_transformers("Bert", **HF), of_transformers("GPT2", n_embd=WIDTH, n_head=HEADS)
LLAMA = of_transformers("Llama", **HF, num_key_value_heads=1)
FULL_ROTARY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
NEOX = of_transformers("GPTNeoX", **HF, attention_bias=False, rope_parameters=FULL_ROTARY)
FALCON = of_transformers("Falcon", **HF)
PHI3 = of_transformers("Phi3", **HF, num_key_value_heads=1, pad_token_id=0)
T5 = of_transformers("T5", d_model=WIDTH, num_heads=HEADS, d_kv=EACH)
