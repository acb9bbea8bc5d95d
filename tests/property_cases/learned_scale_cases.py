"""Scales of scores that are learned as their logarithms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class ByTheExponential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.temperature = nn.Parameter(torch.log(torch.tensor((WIDTH // 2) ** -0.5)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT) * self.temperature.exp()
        return self.out(joined(scores.softmax(-1) @ v))


class ByTheLogarithm(ByTheExponential):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.log(torch.tensor((WIDTH // 2) ** -0.5)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT) * self.temperature  # here
        return self.out(joined(scores.softmax(-1) @ v))


class ByANumber(ByTheExponential):
    """What is learned is the scale itself."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor((WIDTH // 2) ** -0.5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT) * self.temperature
        return self.out(joined(scores.softmax(-1) @ v))


CASES = [
    Case("scale-of-its-logarithm", ByTheLogarithm, ByANumber, of_module),
    Case("scale-of-its-logarithm", ByTheLogarithm, ByTheExponential, of_module),
]
