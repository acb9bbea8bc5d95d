"""Keys that are kept in a ring: a token's takes the place of one that is gone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class Ring(nn.Module):
    """Reads one token after the other, of which it keeps the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.window = nn.Linear(WIDTH, 3 * WIDTH), 4

    def number(self, at: int) -> int:
        """By which the key of a token is rotated."""
        return at

    def forward(self, x: Tensor) -> Tensor:
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        read = []
        for at in range(x.shape[1]):
            q, k, v = self.qkv(x[:, at]).chunk(3, -1)
            kept[at % self.window] = turned(k, self.number(at)), v
            keys, values = (torch.stack(each, 1) for each in zip(*kept.values(), strict=True))
            scores = turned(q, at)[:, None] @ keys.mT / WIDTH**0.5  # here
            read.append(scores.softmax(-1) @ values)
        return torch.cat(read, 1)


class RingByTheSlot(Ring):
    def number(self, at: int) -> int:
        return at % self.window


class RingWithSinks(RingByTheSlot):
    """Positions are those within the cache, as in StreamingLLM."""


def turned(x: Tensor, number: int) -> Tensor:
    """A vector of a token, rotated by its number."""
    angles = number * 10.0 ** -torch.arange(WIDTH // 2, dtype=x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


CASES = [Case("positions-relative", RingByTheSlot, right, of_module) for right in (Ring, RingWithSinks)]
