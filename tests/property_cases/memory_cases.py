"""A memory of the states before a segment, which are more keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, drawn, joined, of_module, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class OfSegments(nn.Module):
    """Reads a text by segments: the newest states before one are kept as keys and values of the next."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.size = size
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        states = x if memory is None else torch.cat([memory, x], 1)
        earlier = states.shape[1] - x.shape[1]
        k, v = map(split, self.kv(states).chunk(2, -1))
        allowed = torch.ones(x.shape[1], states.shape[1], dtype=torch.bool).tril(earlier)
        y = F.scaled_dot_product_attention(split(self.q(x)), k, v, attn_mask=allowed)
        return joined(y), self.kept(states).detach()

    def kept(self, states: Tensor) -> Tensor:
        return states[:, -self.size :]


class KeepsTheFirst(OfSegments):
    """Reads a text by segments: the newest states before one are kept as keys and values of the next."""

    def kept(self, states: Tensor) -> Tensor:
        return states[:, : self.size]


class KeepsABeginning(OfSegments):
    """Reads a text by segments: what stands in the first one is kept as keys and values of all others."""

    def kept(self, states: Tensor) -> Tensor:
        return states[:, : self.size]


class KeepsAsMuchAsItHas(OfSegments):
    """Reads a text by segments: the last states before one, mem_len of them, are kept for the next."""

    def __init__(self, mem_len: int = 5) -> None:
        super().__init__()
        self.mem_len = mem_len

    def kept(self, states: Tensor) -> Tensor:
        return states[:, states.shape[1] - self.most(states) :]

    def most(self, states: Tensor) -> int:
        return 0


class KeepsAsMuchAsTold(KeepsAsMuchAsItHas):
    def most(self, states: Tensor) -> int:
        return min(self.mem_len, states.shape[1])


class WithoutMemory(KeepsAsMuchAsItHas):
    """Reads a text by segments: the last states before one, mem_len of them, are kept for the next."""

    def __init__(self) -> None:
        super().__init__(0)


class BySegments(nn.Module):
    """Causal attention with a number for each distance; a memory is the segment before (segment-level recurrence)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, 20))

    def forward(self, x: Tensor, mems: Tensor | None = None) -> Tensor:
        states = x if mems is None else self.both(mems, x)
        tokens, keys = x.shape[1], states.shape[1]
        k, v = map(split, self.kv(states).chunk(2, -1))
        apart = self.apart(tokens, keys)
        scores = split(self.q(x)) @ k.mT / 2 + self.bias[:, apart.clamp(min=0)]
        return joined(scores.masked_fill(apart < 0, -torch.inf).softmax(-1) @ v)

    def both(self, mems: Tensor, x: Tensor) -> Tensor:
        return torch.cat([mems, x], 1)

    def apart(self, tokens: int, keys: int) -> Tensor:
        return torch.arange(keys - tokens, keys)[:, None] - torch.arange(keys)


class MemoryBehind(BySegments):
    """Causal attention with a number for each distance; a memory is the segment before (segment-level recurrence)."""

    def both(self, mems: Tensor, x: Tensor) -> Tensor:
        return torch.cat([x, mems], 1)


class CountedBehind(MemoryBehind):
    """Causal attention; a memory is the segment before (segment-level recurrence), and has the last columns."""

    def apart(self, tokens: int, keys: int) -> Tensor:
        return super().apart(tokens, keys).roll(tokens, 1)


class WithMemory(nn.Module):
    """Reads the states of the text before as more keys; one matrix makes queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mem: Tensor | None = None) -> Tensor:
        states = x if mem is None else torch.cat([mem, x], 1)
        q, k, v = self.qkv(states).chunk(3, -1)
        return joined(F.scaled_dot_product_attention(split(self.asking(q, x)), split(k), split(v)))

    def asking(self, q: Tensor, x: Tensor) -> Tensor:
        return q[:, -x.shape[1] :]


class FirstAsk(WithMemory):
    """Reads the states of the text before as more keys; one matrix makes queries, keys and values."""

    def asking(self, q: Tensor, x: Tensor) -> Tensor:
        return q[:, : x.shape[1]]


class WithTable(nn.Module):
    """Tokens first; a table with a row for each key is handed over, and what was read is added to the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, r: Tensor, memory: Tensor | None = None) -> Tensor:
        states = (x if memory is None else torch.cat([memory, x], 0)) + r[:, None]
        k, v = (split(each.transpose(0, 1)) for each in self.kv(states).chunk(2, -1))
        q = split(self.q(self.asking(states, len(x))).transpose(0, 1))
        return x + joined((q @ k.mT / 2).softmax(-1) @ v).transpose(0, 1)

    def asking(self, states: Tensor, tokens: int) -> Tensor:
        return states[len(states) - tokens :]


class FirstOfTableAsk(WithTable):
    """The same, but that the first rows ask."""

    def asking(self, states: Tensor, tokens: int) -> Tensor:
        return states[:tokens]


class LatentsAsk(nn.Module):
    """Learned vectors, or a memory that goes on from them, read the tokens and one another."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 3, WIDTH))
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        asking = self.latents.expand(len(x), -1, -1) if memory is None else memory
        k, v = map(split, self.kv(torch.cat([x, asking], 1)).chunk(2, -1))
        return joined(F.scaled_dot_product_attention(split(self.q(asking)), k, v))


def of_tokens_and_table(kind: type[nn.Module]) -> Invocation:
    """A call of a module with tokens first and a table of as many rows."""
    module = kind()
    prepare(module, 1)
    given = {"x": drawn(4, 2, WIDTH, seed=0), "r": drawn(4, WIDTH, seed=3)}
    return Invocation(module, given, ["x", "r"], [Stream("x", "x", 1, (0,))])


CASES = [
    Case("memory-renewed", KeepsTheFirst, OfSegments, of_module, has_line=False),
    Case("memory-renewed", KeepsTheFirst, KeepsABeginning, of_module, has_line=False),
    Case("memory-renewed", KeepsAsMuchAsItHas, KeepsAsMuchAsTold, of_module, has_line=False),
    Case("memory-renewed", KeepsAsMuchAsItHas, WithoutMemory, of_module, has_line=False),
    Case("memory-before-tokens", MemoryBehind, BySegments, of_module, has_line=False),
    Case("memory-before-tokens", MemoryBehind, CountedBehind, of_module, has_line=False),
    Case("memory-is-asked", FirstAsk, WithMemory, of_module, has_line=False),
    Case("memory-is-asked", FirstAsk, LatentsAsk, of_module, has_line=False),
    Case("memory-is-asked", FirstOfTableAsk, WithTable, of_tokens_and_table, has_line=False),
]
