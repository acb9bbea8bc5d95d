"""Functions and modules that differ from the definition on purpose, each in one way that has a name."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bank import right


@right("design", says="soft-cap", dear=True)
def softcapped(q, k, v, cap=5.0):
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    logits = cap * torch.tanh(logits / cap)
    return logits.softmax(-1) @ v


@right("design", says="softmax + 1")
def one_in_the_denominator(q, k, v):
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    top = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - top)
    return e / (torch.exp(-top) + e.sum(-1, keepdim=True)) @ v


@right("design", says="cosine")
def cosine_with_temperature(q, k, v, tau=0.1):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return torch.softmax(q @ k.transpose(-1, -2) / tau, dim=-1) @ v


@right("design", says="sigmoid")
def sigmoid_weights(q, k, v):
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) - math.log(k.size(-2))
    return torch.sigmoid(logits) @ v


@right("design", says="ALiBi")
def linear_biases(q, k, v):
    heads, tokens = q.shape[1], q.shape[2]
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=q.dtype, device=q.device) / heads)
    position = torch.arange(tokens, device=q.device)
    distance = position[None, :] - position[:, None]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + slopes[:, None, None] * distance
    return scores.masked_fill(distance > 0, float("-inf")).softmax(dim=-1) @ v


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def turned(x: Tensor) -> Tensor:
    d = x.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype, device=x.device) / d)
    angles = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return x * angles.cos() + rotate_half(x) * angles.sin()


@right("design", says="rotary")
def rotary_by_halves(q, k, v):
    return torch.softmax(turned(q) @ turned(k).transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v


@right("design", says="rotary")
class RotaryByPairs(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def turn(self, x):
        rate = 10000.0 ** (-torch.arange(0, self.head_dim, 2, dtype=x.dtype, device=x.device) / self.head_dim)
        angle = torch.outer(torch.arange(x.shape[2], dtype=x.dtype, device=x.device), rate)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack((even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), dim=-1)
        return turned.flatten(-2)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))


@right("design", says="norm")
class QueryAndKeyLayerNorm(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = (nn.LayerNorm(dim // num_heads) for _ in range(2))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.q_norm(q), self.k_norm(k)
        attn = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).flatten(2))


@right("design", says="norm")
class QueryAndKeyRootMeanSquare(nn.Module):
    def __init__(self, hidden_size, num_heads, eps=1e-6):
        super().__init__()
        self.num_heads, self.eps = num_heads, eps
        head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        self.q_gain = nn.Parameter(torch.ones(head_dim))
        self.k_gain = nn.Parameter(torch.ones(head_dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.num_heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q = q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + self.eps) * self.q_gain
        k = k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + self.eps) * self.k_gain
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


@right("design", says="cosine")
class CosineWithLearnedTemperature(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = (m(x).view(B, N, self.num_heads, -1).transpose(1, 2) for m in (self.query, self.key, self.value))
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


@right("design", says="sinks")
class LearnedSinks(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, d_model) for _ in range(3))
        self.o_proj = nn.Linear(d_model, d_model)
        self.sinks = nn.Parameter(torch.randn(num_heads))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p(x).view(b, t, self.num_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(2, 3) * (c // self.num_heads) ** -0.5
        extra = self.sinks.view(1, -1, 1, 1).expand(b, -1, t, 1)
        weights = torch.cat((scores, extra), dim=-1).softmax(dim=-1)[..., :-1]
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, t, c))


@right("design", says="no output projection")
class OneHeadWithoutOutput(nn.Module):
    def __init__(self, d_model=2):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))

    def forward(self, encodings):
        q, k, v = self.W_q(encodings), self.W_k(encodings), self.W_v(encodings)
        sims = torch.matmul(q, k.transpose(-2, -1)) / k.size(-1) ** 0.5
        return torch.matmul(F.softmax(sims, dim=-1), v)


@right("design", says="no output projection")
class HeadsWithoutOutput(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))

    def forward(self, hidden_states):
        shape = (*hidden_states.shape[:2], self.num_attention_heads, -1)
        q, k, v = (f(hidden_states).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        context = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.size(-1)), dim=-1) @ v
        return context.transpose(1, 2).contiguous().view(hidden_states.shape)


@right("design", says="relative bias")
class UnscaledWithRelativeBias(nn.Module):
    """Distances fall into buckets: one each up to half of them, logarithmic beyond."""

    def __init__(self, d_model, num_heads, num_buckets=32, max_distance=128):
        super().__init__()
        self.num_heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    def bucket(self, distance):
        sided = self.num_buckets // 2
        exact = sided // 2
        far = distance.abs().clamp(min=exact)
        steps = torch.log(far / exact) / math.log(self.max_distance / exact) * (sided - exact)
        near = torch.where(distance.abs() < exact, distance.abs(), (exact + steps.long()).clamp(max=sided - 1))
        return near + sided * (distance > 0)

    def forward(self, hidden_states):
        b, t, d = hidden_states.shape
        q, k, v = (f(hidden_states).view(b, t, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        position = torch.arange(t, device=hidden_states.device)
        bias = self.relative_attention_bias(self.bucket(position[None, :] - position[:, None]))
        weights = torch.softmax(q @ k.transpose(3, 2) + bias.permute(2, 0, 1), dim=-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, t, d))


@right("design", says="relative bias")
class ScaledWithRelativeBias(nn.Module):
    def __init__(self, dim, num_heads, max_len=64):
        super().__init__()
        self.num_heads, self.max_len = num_heads, max_len
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.table = nn.Parameter(torch.randn(num_heads, 2 * max_len - 1))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        t = x.shape[1]
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        index = torch.arange(t)[None, :] - torch.arange(t)[:, None] + self.max_len - 1
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.table[:, index])
        return self.proj(out.transpose(1, 2).flatten(2))


@right("design", says="ALiBi")
class LinearBiases(nn.Module):
    def __init__(self, d_model, num_heads, causal=True):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        slopes = torch.tensor([2 ** (-8 * (h + 1) / num_heads) for h in range(num_heads)])
        self.register_buffer("slopes", slopes.view(-1, 1, 1))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.num_heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        i = torch.arange(t, device=x.device)
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.num_heads)
        scores = scores - self.slopes * (i[:, None] - i[None, :]).abs()
        if self.causal:
            scores = scores.masked_fill(i[:, None] < i[None, :], -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


def slopes_of(heads):
    largest = 2 ** int(math.log2(heads))
    powers = [2.0 ** (-8 * (h + 1) / largest) for h in range(largest)]
    between = [2.0 ** (-4 * (2 * h + 1) / largest) for h in range(heads - largest)]
    return torch.tensor(powers + between, dtype=torch.float64)


@right("design", says="ALiBi")
class LinearBiasesBesideAMask(nn.Module):
    """mask: added to the scores, broadcast to (batch, heads, length, length)."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.num_heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        i = torch.arange(t, device=x.device)
        distance = (i[:, None] - i[None, :]).abs()
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.num_heads)
        scores = scores - slopes_of(self.num_heads)[:, None, None].to(x.dtype) * distance
        if mask is not None:
            scores = scores + mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


@right("design", says="multi-query")
class MultiQuery(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj, self.v_proj = (nn.Linear(d_model, self.head_dim) for _ in range(2))
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (self.n_heads, self.head_dim))
        weights = torch.einsum("bthd,bsd->bhts", q, self.k_proj(x)).mul(self.head_dim**-0.5).softmax(-1)
        return self.o_proj(torch.einsum("bhts,bsd->bthd", weights, self.v_proj(x)).flatten(2))
