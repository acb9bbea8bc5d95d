"""Pairs of parameters that begin as zeros: the gradient of each is times the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


class Adapted(nn.Module):
    """Attention whose values are those of a matrix and of an update of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Parameter(torch.zeros(HEADS, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = split(q), split(k), split(v + x @ self.down.T @ self.up.T)
        return joined((q @ k.mT / 2).softmax(-1) @ v)


class AdaptedFromOneSide(Adapted):
    """The same whose first matrix is drawn: the update is zero at the beginning, and learns."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.down)


class BehindAGate(nn.Module):
    """Attention behind a gate that begins as zero, as the bias of its output does: the gate learns, then the bias."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(1, WIDTH))
        self.gate = nn.Parameter(torch.zeros(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return x + self.gate.tanh() * (joined((q @ k.mT / 2).softmax(-1) @ v) + self.bias)


class BegunEverywhere(nn.Module):
    """Attention that goes through its matrices, and begins each as zeros: values and what projects them never move."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.apply(self.begin)

    def begin(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return self.out(joined((q @ k.mT / 2).softmax(-1) @ v))


class BegunAtTheEnd(BegunEverywhere):
    """The same of which the last matrix alone begins as zeros: it learns first, and then the others."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.qkv.weight)


CASES = [
    Case("begins-to-learn", Adapted, AdaptedFromOneSide, of_module, has_line=False),
    Case("begins-to-learn", Adapted, BehindAGate, of_module, has_line=False),
    Case("begins-to-learn", BegunEverywhere, BegunAtTheEnd, of_module, has_line=False),
]
