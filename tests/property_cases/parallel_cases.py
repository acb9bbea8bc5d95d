"""Blocks whose attention and feed-forward network stand side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module
from property_cases.output_cases import attention


class SideBySide(nn.Module):
    """Both branches read what one norm returned."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.w_1, self.w_2 = nn.Linear(WIDTH, self.hidden), nn.Linear(self.hidden, WIDTH)

    hidden = 3 * WIDTH

    def network(self, x: Tensor) -> Tensor:
        return self.w_2(torch.relu(self.w_1(x)))  # here

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return self.residual(x, normed) + self.network(self.of_network(x, normed)) + attention(normed)  # here

    def residual(self, x: Tensor, normed: Tensor) -> Tensor:
        return x

    def of_network(self, x: Tensor, normed: Tensor) -> Tensor:
        return normed


class NetworkPastTheNorm(SideBySide):
    def of_network(self, x: Tensor, normed: Tensor) -> Tensor:
        return x


class AttentionPastTheNorm(SideBySide):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.network(self.norm(x)) + attention(x)


class Adapted(NetworkPastTheNorm):
    """A narrow network beside the attention, which reads what the block was given."""

    hidden = WIDTH // 2


class TwoNorms(SideBySide):
    """Each branch has a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.LayerNorm(WIDTH)

    def of_network(self, x: Tensor, normed: Tensor) -> Tensor:
        return self.other(x)


class ByTheFormula(SideBySide):
    """y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x))."""


class NormAsTheResidual(ByTheFormula):
    """y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x))."""

    def residual(self, x: Tensor, normed: Tensor) -> Tensor:
        return normed


class NormedFirst(NormAsTheResidual):
    """x = LayerNorm(x); then both branches are added to it."""


CASES = [
    Case("norm-of-both-branches", NetworkPastTheNorm, SideBySide, of_module),
    Case("norm-of-both-branches", AttentionPastTheNorm, Adapted, of_module),
    Case("norm-of-both-branches", NetworkPastTheNorm, TwoNorms, of_module),
    Case("residual-before-norm", NormAsTheResidual, ByTheFormula, of_module),
    Case("residual-before-norm", NormAsTheResidual, NormedFirst, of_module),
]
