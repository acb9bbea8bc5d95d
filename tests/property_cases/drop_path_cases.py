"""Branches that are left out while a block trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module
from regard.check.target import Invocation, Stream


class DropPath(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = [size if axis == self.axis else 1 for axis, size in enumerate(x.shape)]
        return x * (torch.rand(shape, dtype=x.dtype) < 0.5) * 2


class TokensFirst(nn.Module):
    """(tokens, batch, width)."""

    axis = 1

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.drop_path = nn.Linear(WIDTH, 3 * WIDTH), DropPath(self.axis)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1) for each in self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / WIDTH**0.5).softmax(-1) @ v
        return x + self.drop_path(read.transpose(0, 1))


class LeavesOutTokens(TokensFirst):
    """(tokens, batch, width)."""

    axis = 0


def tokens_first(kind: Any) -> Invocation:
    call = of_module(kind)
    call.arguments, call.streams = {"x": drawn(5, 2, WIDTH, seed=0)}, [Stream("x", "x", 1, (0,))]
    return call


CASES = [Case("drop-path-of-samples", LeavesOutTokens, TokensFirst, tokens_first, has_line=False)]
