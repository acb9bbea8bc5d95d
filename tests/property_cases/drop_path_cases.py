"""Branches that are left out while a block trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module
from regard.check.target import Invocation, Stream


class DropPath(nn.Module):
    def __init__(self, axis: int, rate: float = 0.5, kept: float = 0.5) -> None:
        super().__init__()
        self.axis, self.rate, self.kept = axis, rate, kept

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = [size if axis == self.axis else 1 for axis, size in enumerate(x.shape)]
        return x * (torch.rand(shape, dtype=x.dtype) < self.kept) / (1 - self.rate)


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


class KeptForAnotherShare(TokensFirst):
    def __init__(self) -> None:
        super().__init__()
        self.drop_path = DropPath(self.axis, rate=0.2, kept=0.2)


class BehindTheSum(TokensFirst):
    """The sum with the residual is left out, and not the branch."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1) for each in self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / WIDTH**0.5).softmax(-1) @ v
        kept: Tensor = self.drop_path(x + read.transpose(0, 1))
        return kept


class ReadAtTheFirstToken(nn.Module):
    """A learned token is read in the end: where all branches are left out, it has read nothing of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Parameter(torch.zeros(1, 1, WIDTH)), TokensFirst()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.block(torch.cat([self.first.expand(1, x.shape[1], -1), x]))[0]
        return result


class DropPathAsItIs(DropPath):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 - self.rate) if self.training else x


class NeverDivided(TokensFirst):
    def __init__(self) -> None:
        super().__init__()
        self.drop_path = DropPathAsItIs(self.axis)


class DropPathLessInEval(DropPath):
    """What stays is not divided in training, and all is multiplied by the share in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 - self.rate)


class MultipliedInEval(TokensFirst):
    def __init__(self) -> None:
        super().__init__()
        self.drop_path = DropPathLessInEval(self.axis)


def drop_path(x: Tensor, axis: int, kept: float, training: bool) -> Tensor:
    if not training:
        return x
    shape = [size if each == axis else 1 for each, size in enumerate(x.shape)]
    return x * torch.empty(shape, dtype=x.dtype).bernoulli_(kept) / 0.8


class ByAFunction(TokensFirst):
    kept = 0.8

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1) for each in self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / WIDTH**0.5).softmax(-1) @ v
        return x + drop_path(read.transpose(0, 1), self.axis, self.kept, self.training)


class TokensLeftOutByAFunction(ByAFunction):
    axis = 0


class KeptForAnotherShareByAFunction(ByAFunction):
    kept = 0.2


CASES = [
    Case("drop-path-of-samples", LeavesOutTokens, TokensFirst, tokens_first, has_line=False),
    Case("drop-path-of-samples", TokensLeftOutByAFunction, ByAFunction, tokens_first, has_line=False),
    Case("drop-path-of-samples", BehindTheSum, ReadAtTheFirstToken, tokens_first, has_line=False),
    Case("drop-path-keeps-mean", NeverDivided, MultipliedInEval, tokens_first, has_line=False),
    Case("drop-path-keeps-mean", KeptForAnotherShare, TokensFirst, tokens_first, has_line=False),
    Case("drop-path-keeps-mean", KeptForAnotherShareByAFunction, ByAFunction, tokens_first, has_line=False),
]
