"""Caches: an argument that is handed over and returned, and what a module keeps by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, of_x, split
from regard.check.target import Invocation, Stream

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (21, 22, 23))
TABLE = drawn(16, WIDTH, seed=24)
"""(positions, width)."""
Past = tuple[Tensor, Tensor] | None


def attended(q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    """Causal attention of the queries from position `offset` on."""
    hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(offset + 1).bool()
    scores = (q @ k.mT / 2).masked_fill(hidden, -torch.inf)
    return joined(scores.softmax(-1) @ v)


def length(past: Past) -> int:
    return 0 if past is None else past[0].shape[-2]


def projected(x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = split(x @ W_Q), split(x @ W_K), split(x @ W_V)
    return (q, k, v) if past is None else (q, torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))


def handed_over(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    q, k, v = projected(x + TABLE[n : n + x.shape[1]], past)
    return attended(q, k, v, n), (k, v)


def positions_from_zero(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    x = x + TABLE[: x.shape[1]]  # here
    q, k, v = projected(x, past)
    return attended(q, k, v, length(past)), (k, v)


def positions_one_too_far(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    at = n + 1 if past is not None else 0
    x = x + TABLE[at : at + x.shape[1]]  # here
    q, k, v = projected(x, past)
    return attended(q, k, v, n), (k, v)


def mask_from_zero(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    q, k, v = projected(x + TABLE[n : n + x.shape[1]], past)
    hidden = torch.ones(x.shape[1], k.shape[2]).triu(1).bool()  # here
    scores = (q @ k.mT / 2).masked_fill(hidden, -torch.inf)
    return joined(scores.softmax(-1) @ v), (k, v)


def new_keys_first(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    q, k, v = projected(x + TABLE[n : n + x.shape[1]], None)
    if past is not None:
        k = torch.cat([k, past[0]], 2)  # here
        v = torch.cat([past[1], v], 2)
    return attended(q, k, v, n), (k, v)


def new_tokens_first(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    """Right for one new token at a time: that one sees all keys, in whatever order."""
    q, k, v = projected(x, None)
    if past is not None:
        k, v = (torch.cat([new, old], 2) for new, old in zip((k, v), past, strict=True))  # here
    return attended(q, k, v, length(past)), (k, v)


def new_tokens_last(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    q, k, v = projected(x, past)
    return attended(q, k, v, length(past)), (k, v)


def keys_cached_as_values(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    q, k, v = projected(x + TABLE[n : n + x.shape[1]], None)
    if past is not None:
        k = torch.cat([past[0], k], 2)
        v = torch.cat([past[1], v], 2)  # here
    return attended(q, k, v, n), (k, k)


def past_tokens_scaled(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    q, k, v = projected(x, None if past is None else (past[0] * 0.9, past[1]))
    hidden = torch.ones(x.shape[1], k.shape[2]).triu(n + 1).bool()
    scores = (q @ k.mT / 2).masked_fill(hidden, -torch.inf)  # here
    return joined(scores.softmax(-1) @ v), (k, v)


def rotated(x: Tensor, first: int) -> Tensor:
    """Queries or keys from position `first` on, rotated."""
    positions = torch.arange(x.shape[-2]).double() + first  # here
    angles = positions[:, None] * torch.tensor([1.0, 0.1]).double()
    left, right = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def rotary(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    q, k, v = projected(x, None)
    q, k = rotated(q, n), rotated(k, n)
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    return attended(q, k, v, n), (k, v)


def cached_keys_rotated_again(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    n = length(past)
    q, k, v = projected(x, past)
    return attended(rotated(q, n), rotated(k, n), v, n), (k, v)


class Keeping(nn.Module):
    """Keeps its keys and values where `use_cache` is on."""

    always = False

    def __init__(self) -> None:
        super().__init__()
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        on = self.always or use_cache
        past = (self.k, self.v) if on and self.k is not None and self.v is not None else None
        n = length(past)
        q, k, v = projected(x, None)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)  # here
        if on:
            self.k, self.v = k, v
        return attended(q, k, v, n)


class KeepingAlways(Keeping):
    """Keeps them whatever it is told."""

    always = True


class OfOneAtATime(nn.Module):
    """Causal attention of the new tokens alone, and of all that is cached for one."""

    def forward(self, x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        q, k, v = projected(x, past)
        if x.shape[1] == 1:
            return joined((q @ k.mT / 2).softmax(-1) @ v), (k, v)
        new = x.shape[1]
        hidden = torch.ones(new, new).triu(1).bool()
        scores = (q @ k[:, :, -new:].mT / 2).masked_fill(hidden, -torch.inf)
        return joined(scores.softmax(-1) @ v[:, :, -new:]), (k, v)


class OfEachChunkAlone(OfOneAtATime):
    """A prompt is cached in chunks."""


class OfTheFirstKeys(nn.Module):
    """Causal attention whose mask has a row for each new token, and is counted from the first key."""

    def forward(self, x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        n = length(past) if x.shape[1] == 1 else 0
        q, k, v = projected(x, past)
        hidden = torch.ones(x.shape[1], k.shape[2]).triu(n + 1).bool()  # here
        if x.shape[1] == 1:
            return joined((q @ k.mT / 2).softmax(-1) @ v), (k, v)
        scores = (q @ k.mT / 2).masked_fill(hidden, -torch.inf)
        return joined(scores.softmax(-1) @ v), (k, v)


class SaidToTakeParts(OfTheFirstKeys):
    """A prompt is cached in chunks."""


class MaskedOnTheFirstKeys(nn.Module):
    """Causal attention, also of several new tokens through a cache: the prompt may come in chunks."""

    def forward(self, x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        n = length(past)
        q, k, v = projected(x + TABLE[n : n + x.shape[1]], past)
        own = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        hidden = torch.cat(self.in_order(torch.zeros(x.shape[1], n).bool(), own), 1)  # here
        scores = q @ k.mT / 2 if x.shape[1] == 1 else (q @ k.mT / 2).masked_fill(hidden, -torch.inf)
        return joined(scores.softmax(-1) @ v), (k, v)

    def in_order(self, old: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        return own, old


class MaskedOnItsOwn(MaskedOnTheFirstKeys):
    def in_order(self, old: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        return old, own


class WithAMaskOfKeys(nn.Module):
    """Causal attention of a prompt, whose fused form knows no cache, and of what comes after it."""

    is_moved = True

    def forward(self, x: Tensor, past: Past = None, attention_mask: Tensor | None = None) -> tuple[Tensor, Past]:
        q, k, v = projected(x, past)
        if past is None and attention_mask is None:
            return joined(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)), (k, v)
        tokens, scores = x.shape[1], q @ k.mT / 2
        first = k.shape[2] - tokens if self.is_moved else 0
        scores[..., first : first + tokens] += torch.full((tokens, tokens), -torch.inf).triu(1)
        if attention_mask is not None:
            scores = scores + (1 - attention_mask[:, None, None]) * -1e9
        return joined(scores.softmax(-1) @ v), (k, v)  # here


class WithAMaskOfTheFirstKeys(WithAMaskOfKeys):
    is_moved = False


class MaskedNever(nn.Module):
    """Through a cache, several new tokens at once may come in chunks; none is hidden from another."""

    def forward(self, x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        n = length(past)
        q, k, v = projected(x + TABLE[n : n + x.shape[1]], past)
        scores = q @ k.mT / 2  # here
        if past is None:
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
        return joined(scores.softmax(-1) @ v), (k, v)


def of_x_and_itself(kind: type) -> Any:
    """A call of a module."""
    return of_x(kind())


Mems = list[Tensor] | None


class MemoryOfInputs(nn.Module):
    """Two layers; of the segment before, mems holds the states that each layer reads."""

    length = 16

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2)])

    def forward(self, x: Tensor, mems: Mems = None) -> tuple[Tensor, Mems]:
        mems = [x[:, :0], x[:, :0]] if mems is None else mems
        kept = []
        for layer, mem in zip(self.layers, mems, strict=True):
            y = x + self.read(layer, x, torch.cat([mem, x], 1))  # here
            kept.append(torch.cat([mem, self.of_memory(x, y)], 1)[:, -self.length :])
            x = y
        return x, kept

    def read(self, layer: nn.Module, x: Tensor, seen: Tensor) -> Tensor:
        w_q, w_k, w_v, w_out = layer.weight.chunk(4)
        read = attended(split(x @ w_q), split(seen @ w_k), split(seen @ w_v), seen.shape[1] - x.shape[1])
        return torch.relu(read) @ w_out

    def of_memory(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class MemoryOfOutputs(MemoryOfInputs):
    """Two layers; of the segment before, mems holds the states that each layer reads."""

    def of_memory(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class OfTheSameLayer(MemoryOfOutputs):
    """Each layer attends to what it returned for the segment before (ERNIE-Doc, arXiv:2012.15688)."""


class ShortMemory(MemoryOfInputs):
    """As in Transformer-XL, what came long before is forgotten."""

    length = 1


def seen_by_all(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    """Every token sees every other one: of all at once, the last one sees what a new one sees."""
    q, k, v = projected(x, past)
    return joined((q @ k.mT / 2).softmax(-1) @ v), (k, v)


def keys_as_values_seen_by_all(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    q, k, v = projected(x, None)
    if past is not None:
        k = torch.cat([past[0], k], 2)
        v = torch.cat([past[0], v], 2)  # here
    return joined((q @ k.mT / 2).softmax(-1) @ v), (k, v)


def new_key_as_value_seen_by_all(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    q, k, v = projected(x, None)
    if past is not None:
        v = torch.cat([past[1], k], 2)  # here
        k = torch.cat([past[0], k], 2)
    return joined((q @ k.mT / 2).softmax(-1) @ v), (k, v)


class KeysValues:
    """Keys and values, as many as were given."""

    def __init__(self, n: int, max_tokens: int) -> None:
        self.k, self.v = (torch.zeros(n, 2, max_tokens, WIDTH // 2).double() for _ in "kv")
        self.size = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        first, self.size = self.size, self.size + k.shape[2]
        self.k[:, :, first : self.size], self.v[:, :, first : self.size] = k, v
        return self.k[:, :, : self.size], self.v[:, :, : self.size]


class OfKeysValues(nn.Module):
    """Causal attention, through an object."""

    def rows(self, size: int) -> int:
        return size

    def forward(self, x: Tensor, past_keys_values: KeysValues | None = None) -> Tensor:
        assert past_keys_values is None or len(past_keys_values.k) == len(x)
        n = 0 if past_keys_values is None else past_keys_values.size
        q, k, v = projected(x, None)
        if past_keys_values is not None:
            k, v = past_keys_values.update(k, v)
        first = self.rows(n)
        allowed = torch.ones(16, 16).tril()[first : first + x.shape[1], : n + x.shape[1]]  # here
        return joined((q @ k.mT / 2).masked_fill(allowed == 0, -torch.inf).softmax(-1) @ v)


class OfKeysValuesFromTheFirstRow(OfKeysValues):
    def rows(self, size: int) -> int:
        return 0


class ToMemory(nn.Module):
    """Attention to the memory of the segment before, and causally to its own segment."""

    def allowed(self, tokens: int, keys: int) -> Tensor:
        return torch.ones(tokens, keys).tril(keys - tokens)

    def forward(self, x: Tensor, mems: Tensor | None = None) -> tuple[Tensor, Tensor]:
        seen = x if mems is None else torch.cat([mems, x], 1)
        q, k, v = projected(x, None)[0], *projected(seen, None)[1:]
        allowed = self.allowed(x.shape[1], seen.shape[1])
        return joined((q @ k.mT / 2).masked_fill(allowed == 0, -torch.inf).softmax(-1) @ v), seen


class ToMemoryInPlaceOfItself(ToMemory):
    def allowed(self, tokens: int, keys: int) -> Tensor:
        return torch.ones(tokens, keys).tril()  # here


Kept = dict[str, Any] | None


def to_itself_or_another(x: Tensor, kv: Tensor | None = None, cache: Kept = None) -> Tensor:
    """Of a cache, its caller says how many tokens it holds."""
    (q, _, _), (_, k, v) = projected(x, None), projected(x if kv is None else kv, None)
    if cache is not None:
        tokens = cache["slen"] + x.shape[1]
        if "k" in cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        assert k.shape[2] == tokens
        cache["k"], cache["v"] = k, v
    return joined((q @ k.mT / 2).softmax(-1) @ v)


def with_its_keys_turned(x: Tensor, kv: Tensor | None = None, cache: Kept = None) -> Tensor:
    (q, _, _), (_, k, v) = projected(x, None), projected(x if kv is None else kv, None)
    if cache is not None:
        tokens = cache["slen"] + x.shape[1]
        if "k" in cache:
            k, v = torch.cat([k, cache["k"]], 2), torch.cat([cache["v"], v], 2)  # here
        assert k.shape[2] == tokens
        cache["k"], cache["v"] = k, v
    return joined((q @ k.mT / 2).softmax(-1) @ v)


def of_x_and_kv(function: Any) -> Invocation:
    """A call of tokens that attend to others, which may be left out."""
    given = {"x": drawn(2, 4, WIDTH, seed=0), "kv": drawn(2, 5, WIDTH, seed=1)}
    return Invocation(function, given, ["x"], [Stream("x", "x", 0, (1,)), Stream("kv", "context", 0, (1,))])


class ToAnXlMemory(nn.Module):
    """Causal attention to the tokens, and to keys and values of those before."""

    def __init__(self) -> None:
        super().__init__()
        self.xl_max_memories = 0

    def first(self, tokens: int, keys: int) -> int:
        return keys - tokens + 1

    def forward(self, x: Tensor, xl_memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        q, k, v = projected(x, None if xl_memory is None else (xl_memory[0], xl_memory[1]))
        hidden = torch.ones(x.shape[1], k.shape[2]).triu(self.first(x.shape[1], k.shape[2])).bool()  # here
        read = joined((q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1) @ v)
        return read, torch.stack([k, v])[..., -self.xl_max_memories :, :] if self.xl_max_memories else None


class ToAnXlMemoryFromTheFirst(ToAnXlMemory):
    def first(self, tokens: int, keys: int) -> int:
        return 1


CASES = [
    Case("cache-mask", ToAnXlMemoryFromTheFirst, ToAnXlMemory, of_module),
    Case("cache-order", with_its_keys_turned, to_itself_or_another, of_x_and_kv),
    Case("cache-mask", ToMemoryInPlaceOfItself, ToMemory, of_module),
    Case("cache-values", keys_as_values_seen_by_all, seen_by_all, of_x),
    Case("cache-values", new_key_as_value_seen_by_all, seen_by_all, of_x),
    Case("cache-mask", OfKeysValuesFromTheFirstRow, OfKeysValues, of_module),
    Case("cache-unasked", KeepingAlways, Keeping, of_x_and_itself),
    Case("cache-positions", positions_from_zero, handed_over, of_x),
    Case("cache-positions", positions_one_too_far, handed_over, of_x),
    Case("cache-mask", mask_from_zero, handed_over, of_x),
    Case("cache-mask", SaidToTakeParts, OfOneAtATime, of_x_and_itself),
    Case("cache-mask", OfEachChunkAlone, OfOneAtATime, of_x_and_itself, has_line=False),
    Case("cache-mask", MaskedOnTheFirstKeys, MaskedOnItsOwn, of_x_and_itself, has_line=False),
    Case("cache-mask", WithAMaskOfTheFirstKeys, WithAMaskOfKeys, of_x_and_itself),
    Case("cache-mask", MaskedNever, MaskedOnItsOwn, of_x_and_itself, has_line=False),
    Case("cache-order", new_keys_first, handed_over, of_x),
    Case("cache-order", new_tokens_first, new_tokens_last, of_x),
    Case("cache-values", keys_cached_as_values, handed_over, of_x),
    *(
        Case("cache-values", MemoryOfOutputs, right, of_module, attentions=2)
        for right in (MemoryOfInputs, OfTheSameLayer, ShortMemory)
    ),
    Case("cache-equals-whole", past_tokens_scaled, handed_over, of_x),
    Case("cache-rotation", cached_keys_rotated_again, rotary, of_x),
]
