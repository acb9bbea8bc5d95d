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


CASES = [Case("positions-unrounded", RotatedInItsPrecision, RotatedInFloat32, of_module, has_line=False)]
