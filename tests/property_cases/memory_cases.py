"""A memory of the states before a segment, which are more keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


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


CASES = [
    Case("memory-renewed", KeepsTheFirst, OfSegments, of_module, has_line=False),
    Case("memory-renewed", KeepsTheFirst, KeepsABeginning, of_module, has_line=False),
    Case("memory-before-tokens", MemoryBehind, BySegments, of_module, has_line=False),
    Case("memory-before-tokens", MemoryBehind, CountedBehind, of_module, has_line=False),
]
