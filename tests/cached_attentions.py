"""Attentions with a cache in each form that people give one, and the same with a mistake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


class Base(nn.Module):
    """Causal attention with rotary positions; what comes after the projections, in parts."""

    def __init__(self, d_model: int = 16, num_heads: int = 2) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def projected(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.rotated(q, start), self.rotated(k, start), v

    def rotated(self, x: Tensor, start: int) -> Tensor:
        half = self.head_dim // 2
        frequencies = 100.0 ** (-torch.arange(half) / half)
        angles = (start + torch.arange(x.shape[-2]))[:, None] * frequencies
        left, right = x.chunk(2, -1)
        return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)

    def attended(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(start)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(heads.transpose(1, 2).flatten(2))


class TupleReturned(Base):
    def forward(self, x: Tensor, layer_past: Pair | None = None, use_cache: bool = False) -> Any:
        start = 0 if layer_past is None else layer_past[0].shape[2]
        q, k, v = self.projected(x, start)
        if layer_past is not None:
            k, v = torch.cat([layer_past[0], k], 2), torch.cat([layer_past[1], v], 2)
        y = self.attended(q, k, v, start)
        return (y, (k, v)) if use_cache else y


class GivenTheWholeText(Base):
    """With a cache it takes the last token alone, as x-transformers does."""

    def forward(self, x: Tensor, layer_past: Pair | None = None, use_cache: bool = False) -> Any:
        start = 0 if layer_past is None else layer_past[0].shape[2]
        q, k, v = self.projected(x, 0)
        if layer_past is not None:
            q, k, v = (each[..., -1:, :] for each in (q, k, v))
            k, v = torch.cat([layer_past[0], k], 2), torch.cat([layer_past[1], v], 2)
        y = self.attended(q, k, v, start)
        return (y, (k, v)) if use_cache else y


class KeysAndValues(Base):
    """One argument for the keys, one for the values."""

    def forward(self, x: Tensor, past_k: Tensor | None = None, past_v: Tensor | None = None) -> Any:
        start = 0 if past_k is None else past_k.shape[2]
        q, k, v = self.projected(x, start)
        if past_k is not None and past_v is not None:
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        return self.attended(q, k, v, start), k, v


class DictWritten(Base):
    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        start = cache["k"].shape[2] if cache else 0
        q, k, v = self.projected(x, start)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        return self.attended(q, k, v, start)


class DictWithRestart(DictWritten):
    def projected(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        return super().projected(x, 0)


class GrowingCache:
    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def __len__(self) -> int:
        return sum(k.shape[2] for k, _ in self.pairs)

    def update(self, k: Tensor, v: Tensor) -> Pair:
        self.pairs.append((k, v))
        return torch.cat([k for k, _ in self.pairs], 2), torch.cat([v for _, v in self.pairs], 2)


class ObjectUpdated(Base):
    def forward(self, x: Tensor, kv_cache: GrowingCache | None = None) -> Tensor:
        start = 0 if kv_cache is None else len(kv_cache)
        q, k, v = self.projected(x, start)
        if kv_cache is not None:
            k, v = kv_cache.update(k, v)
        return self.attended(q, k, v, start)


class ObjectOfItsOwnClass(Base):
    """As mlx-lm hands it over."""

    class Cache:
        def __init__(self) -> None:
            self.held: list[Pair] = []
            self.offset = 0

        def update_and_fetch(self, k: Tensor, v: Tensor) -> list[Tensor]:
            self.held.append((k, v))
            self.offset += k.shape[2]
            return [torch.cat(each, 2) for each in zip(*self.held, strict=True)]

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        start = 0 if cache is None else cache.offset
        q, k, v = self.projected(x, start)
        if cache is not None:
            k, v = cache.update_and_fetch(k, v)
        return self.attended(q, k, v, start)


class BuffersByStart(Base):
    """As Llama's reference."""

    def __init__(self, d_model: int = 16, num_heads: int = 2, max_batch_size: int = 16, max_seq_len: int = 16) -> None:
        super().__init__(d_model, num_heads)
        shape = (max_batch_size, num_heads, max_seq_len, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape))
        self.register_buffer("cache_v", torch.zeros(shape))

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        batch, end = len(x), start_pos + x.shape[1]
        q, k, v = self.projected(x, start_pos)
        self.cache_k[:batch, :, start_pos:end] = k
        self.cache_v[:batch, :, start_pos:end] = v
        return self.attended(q, self.cache_k[:batch, :, :end], self.cache_v[:batch, :, :end], self.diagonal(start_pos))

    def diagonal(self, start: int) -> int:
        return start


class BuffersWithMaskFromZero(BuffersByStart):
    def diagonal(self, start: int) -> int:
        return 0


class StaticCache(nn.Module):
    def __init__(self, max_batch_size: int, max_seq_length: int, n_heads: int, head_dim: int) -> None:
        super().__init__()
        shape = (max_batch_size, n_heads, max_seq_length, head_dim)
        self.register_buffer("k", torch.zeros(shape, dtype=torch.bfloat16))
        self.register_buffer("v", torch.zeros(shape, dtype=torch.bfloat16))

    def update(self, input_pos: Tensor, k: Tensor, v: Tensor) -> Pair:
        self.k[:, :, input_pos] = k
        self.v[:, :, input_pos] = v
        return self.k, self.v


class InstalledByInputPos(Base):
    """As gpt-fast: whoever generates puts the cache in."""

    def __init__(self, d_model: int = 16, num_heads: int = 2) -> None:
        super().__init__(d_model, num_heads)
        self.kv_cache: StaticCache | None = None

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        positions = torch.arange(x.shape[1]) if input_pos is None else input_pos
        q, k, v = self.projected(x, int(positions[0]))
        if self.kv_cache is not None:
            k, v = self.kv_cache.update(positions, k, v)
        allowed = torch.arange(k.shape[2])[None] <= positions[:, None]
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(heads.transpose(1, 2).flatten(2))


class KeptBySetup(InstalledByInputPos):
    def setup_cache(self, batch_size: int, dtype: torch.dtype, max_seq_len: int) -> None:
        self.kv_cache = StaticCache(batch_size, max_seq_len, self.num_heads, self.head_dim).to(dtype)


class TwoLayers(nn.Module):
    """A cache for each layer, in a list that is returned."""

    def __init__(self, d_model: int = 16, num_heads: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TupleReturned(d_model, num_heads) for _ in range(2)])

    def forward(self, x: Tensor, past_key_values: list[Pair] | None = None, use_cache: bool = False) -> Any:
        presents = []
        for number, layer in enumerate(self.layers):
            past = None if past_key_values is None else past_key_values[number]
            y, present = layer(x, layer_past=past, use_cache=True)
            x = x + y
            presents.append(present)
        return {"hidden": x, "past_key_values": presents} if use_cache else x


class RightForOneToken(TupleReturned):
    """With a cache it takes one new token at a time: no mask is needed then."""

    def attended(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=start == 0)
        return self.out(heads.transpose(1, 2).flatten(2))


class MaskedForAPrompt(TupleReturned):
    """Causal where there are several queries, as those of a prompt, and without a mask for one new token."""

    def attended(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        return self.out(heads.transpose(1, 2).flatten(2))


class MaskOfTheCaller(TupleReturned):
    """With a cache its caller hands the mask over; without a mask it is causal."""

    def forward(  # type: ignore[override]
        self, x: Tensor, attention_bias: Tensor | None = None, layer_past: Pair | None = None
    ) -> Any:
        start = 0 if layer_past is None else layer_past[0].shape[2]
        q, k, v = self.projected(x, start)
        if layer_past is not None:
            k, v = torch.cat([layer_past[0], k], 2), torch.cat([layer_past[1], v], 2)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_bias, is_causal=attention_bias is None)
        return self.out(heads.transpose(1, 2).flatten(2)), (k, v)


class NotCausal(TupleReturned):
    def attended(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        heads = F.scaled_dot_product_attention(q, k, v)
        return self.out(heads.transpose(1, 2).flatten(2))


class NotCausalTwice(TwoLayers):
    def __init__(self, d_model: int = 16, num_heads: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([NotCausal(d_model, num_heads) for _ in range(2)])


class RollingWindow(TupleReturned):
    """A window of 3 keys; the cache keeps no more."""

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor, int] | None = None) -> Any:  # type: ignore[override]
        start = 0 if past is None else past[2]
        q, k, v = self.projected(x, start)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        new, kept = q.shape[2], k.shape[2]
        queries, keys = torch.arange(kept - new, kept)[:, None], torch.arange(kept)[None]
        allowed = (keys <= queries) & (keys > queries - 3)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(heads.transpose(1, 2).flatten(2)), (k[:, :, -self.kept :], v[:, :, -self.kept :], start + new)

    kept = 2


class WindowThatForgets(RollingWindow):
    kept = 1


class Accumulating(Base):
    """Decodes: every call goes on from the one before."""

    def __init__(self, d_model: int = 16, num_heads: int = 2) -> None:
        super().__init__(d_model, num_heads)
        self.reset()

    def reset(self) -> None:
        self.past: Pair | None = None

    def forward(self, x: Tensor) -> Tensor:
        start = 0 if self.past is None else self.past[0].shape[2]
        q, k, v = self.projected(x, start)
        if self.past is not None:
            k, v = torch.cat([self.past[0], k], 2), torch.cat([self.past[1], v], 2)
        self.past = (k, v)
        return self.attended(q, k, v, start)


@dataclass
class CrossCache:
    k: Tensor | None = None
    v: Tensor | None = None


class CrossAttention(Base):
    """Keys and values of the context are made once."""

    def forward(self, x: Tensor, context: Tensor, cache: CrossCache | None = None) -> Tensor:
        q, _, _ = self.projected(x, 0)
        if cache is not None and cache.k is not None and cache.v is not None:
            k, v = cache.k, cache.v
        else:
            _, k, v = self.projected(context, 0)
            if cache is not None:
                cache.k, cache.v = k, v
        heads = F.scaled_dot_product_attention(q, k, v)
        return self.out(heads.transpose(1, 2).flatten(2))


class OwnMaskFromZero(TupleReturned):
    """Takes a mask besides, and has a causal mask of its own."""

    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Tensor | None = None, past: Pair | None = None
    ) -> Any:
        start = 0 if past is None else past[0].shape[2]
        q, k, v = self.projected(x, start)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = q @ k.mT / self.head_dim**0.5
        scores = scores.masked_fill(torch.ones(q.shape[2], k.shape[2]).triu(1).bool(), -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


class AlwaysDropping(TupleReturned):
    """Drops also where it is evaluated."""

    def attended(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        return F.dropout(super().attended(q, k, v, start), 0.1)
