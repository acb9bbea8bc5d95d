"""Norms that square in float16."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class Halved(nn.Module):
    """A block for inference. It runs in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.qkv = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, 3 * WIDTH)

    def of_squares(self, x: Tensor) -> Tensor:
        return (x.float() ** 2).mean(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        normed = (x * torch.rsqrt(self.of_squares(x) + 1e-6)).to(x.dtype)
        q, k, v = self.qkv(normed * self.gain).chunk(3, -1)
        return x + (q @ k.mT / WIDTH**0.5).softmax(-1) @ v  # type: ignore[no-any-return]


class SquaresInHalf(Halved):
    """A block for inference. It runs in float16."""

    def of_squares(self, x: Tensor) -> Tensor:
        return (x * x).sum(-1, keepdim=True) / WIDTH


class SquaresInFloat32(SquaresInHalf):
    """A block for inference in float32."""


CASES = [
    Case("norm-in-float32", SquaresInHalf, Halved, of_module, has_line=False),
    Case("norm-in-float32", SquaresInHalf, SquaresInFloat32, of_module, has_line=False),
]
