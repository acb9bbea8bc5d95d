"""Rotary positions in bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class RotatedInFloat32(nn.Module):
    """Self-attention with rotary positions. It runs in float32 and in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]).float()

    def rotated(self, x: Tensor) -> Tensor:
        positions = self.positions(x)
        exponents = torch.arange(0, WIDTH, 2) / WIDTH
        angles = positions[:, None] * (10000.0**-exponents).to(positions.dtype)
        cos, sin = (each.to(x.dtype) for each in (angles.cos(), angles.sin()))
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (self.rotated(q) @ self.rotated(k).mT / WIDTH**0.5).softmax(-1) @ v


class RotatedInItsPrecision(RotatedInFloat32):
    """Self-attention with rotary positions. It runs in float32 and in bfloat16."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]).to(x.dtype)


class CountedInBfloat16(RotatedInFloat32):
    """Self-attention with rotary positions."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], dtype=torch.bfloat16).float()


class CountedInPairs(RotatedInFloat32):
    """Self-attention with rotary positions: two tokens have one. It runs in float16 as well."""

    def positions(self, x: Tensor) -> Tensor:
        return (torch.arange(x.shape[1]) // 2).float()


class CountedToTheEnd(RotatedInFloat32):
    """Self-attention with rotary positions: what is farther away than the last place counts as that."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]).clamp(max=256).float()


class WithATable(nn.Module):
    """Self-attention with rotary positions, as complex numbers that are made once."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        angles = torch.outer(self.positions(600), 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def positions(self, count: int) -> Tensor:
        return torch.arange(count).float()

    def rotated(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (self.rotated(q) @ self.rotated(k).mT / WIDTH**0.5).softmax(-1) @ v


class WithATableOfBfloat16(WithATable):
    def positions(self, count: int) -> Tensor:
        return torch.arange(count, dtype=torch.bfloat16).float()


class WithATableThatEnds(WithATable):
    """What is farther away than the last place counts as that."""

    def positions(self, count: int) -> Tensor:
        return torch.arange(count).clamp(max=400).float()


CASES = [
    *(
        Case("positions-unrounded", CountedInBfloat16, right, of_module, has_line=False)
        for right in (RotatedInFloat32, CountedInPairs, CountedToTheEnd)
    ),
    Case("positions-unrounded", RotatedInItsPrecision, RotatedInFloat32, of_module, has_line=False),
    Case("positions-unrounded", WithATableOfBfloat16, WithATable, of_module, has_line=False),
    Case("positions-unrounded", WithATableOfBfloat16, WithATableThatEnds, of_module, has_line=False),
]
