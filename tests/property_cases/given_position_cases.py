"""Positions that are handed over with the tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split
from property_cases.position_cases import rotated
from regard.check.target import Invocation


class ReadAtPositions(nn.Module):
    """Attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def table(self, positions: Tensor) -> Tensor:
        return self.angles()[positions][:, None]

    def angles(self) -> Tensor:
        return torch.arange(16.0).double()[:, None] * torch.tensor([1.0, 0.01]).double().repeat(2)

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        q, k = (rotated(each, self.table(position_ids)) for each in (q, k))
        return joined((q @ k.mT / 2).softmax(-1) @ v)


class CountsPositions(ReadAtPositions):
    def table(self, positions: Tensor) -> Tensor:
        return self.angles()[: positions.shape[-1]]


class CountsPositionsAsItSays(CountsPositions):
    """Attention with rotary positions.

    position_ids: for others that are called alike; not used.
    """


class WithoutPositions(ReadAtPositions):
    """Attention that others, with positions, stand beside."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / 2).softmax(-1) @ v)


def with_positions(kind: Any) -> Invocation:
    """A call that hands over the position of each token."""
    call = of_module(kind)
    count = call.arguments["x"].shape[1]
    given = {**call.arguments, "position_ids": torch.arange(count).expand(2, count)}
    return replace(call, arguments=given, positional=["x", "position_ids"])


CASES = [
    Case("positions-as-given", CountsPositions, ReadAtPositions, with_positions, has_line=False),
    Case("positions-as-given", CountsPositions, CountsPositionsAsItSays, with_positions, has_line=False),
    Case("positions-as-given", CountsPositions, WithoutPositions, with_positions, has_line=False),
]
