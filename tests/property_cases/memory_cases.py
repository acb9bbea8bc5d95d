"""A memory of the states before a segment, which are more keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


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


CASES = [
    Case("memory-renewed", KeepsTheFirst, OfSegments, of_module, has_line=False),
    Case("memory-renewed", KeepsTheFirst, KeepsABeginning, of_module, has_line=False),
]
