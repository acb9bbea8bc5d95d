"""One matrix for both sides of a gate in a feed-forward network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module
from property_cases.output_cases import attention


class TwoHalves(nn.Module):
    """One matrix for both sides of a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + attention(x)
        one, other = self.both(x).chunk(2, -1)
        return x + self.down(self.gated(one, other))

    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return one * nn.functional.gelu(other)


class AddsTheOtherHalf(TwoHalves):
    """A gate of its own, and what is added to it."""

    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return one * nn.functional.silu(one) + other


class BentByHand(TwoHalves):
    """GELU is of one side alone, as any activation."""

    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return one * torch.sigmoid(1.702 * one) * other


class GatesItself(TwoHalves):
    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return other * nn.functional.gelu(other)  # here


class OpensItself(TwoHalves):
    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return one.sigmoid() * one  # here


CASES = [
    Case("gate-of-the-other-half", GatesItself, TwoHalves, of_module),
    Case("gate-of-the-other-half", GatesItself, AddsTheOtherHalf, of_module),
    Case("gate-of-the-other-half", OpensItself, BentByHand, of_module),
]
