"""What heads go through once they were read: a norm of each, and a factor that is not learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_x, split
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

START = 0.3


class NormedHeads(nn.Module):
    """Attention, then an RMS norm per head and multiplication by 1 - lambda_init."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lambda_init = START

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        y = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1) @ v
        y = y * torch.rsqrt(y.square().mean(self.over(), keepdim=True) + 1e-5)  # here
        return self.out(joined(y * (1 - self.lambda_init)))

    def over(self) -> tuple[int, ...]:
        return (-1,)


class NormedTogether(NormedHeads):
    """Attention, then an RMS norm per head."""

    def over(self) -> tuple[int, ...]:
        return (1, -1)


class NormedTogetherAsSaid(NormedTogether):
    """Attention, then an RMS norm of all heads."""


class LearnedFactor(NormedHeads):
    """Attention, then multiplication by 1 - lambda_init."""

    def __init__(self) -> None:
        super().__init__()
        self.lam = nn.Parameter(torch.tensor(START))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        y = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1) @ v
        y = y * (1 - self.lam)  # here
        return self.out(joined(y))


def of_five_tokens(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    return of_x(module, tokens=5)


CASES = [
    Case("norm-of-each-head", NormedTogether, NormedHeads, of_five_tokens),
    Case("norm-of-each-head", NormedTogether, NormedTogetherAsSaid, of_five_tokens),
    Case("factor-as-documented", LearnedFactor, NormedHeads, of_five_tokens),
]
