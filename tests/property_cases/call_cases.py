"""What a call of a module leaves as it was: train() and eval(), and the parameters that it was made with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class ReadsItsMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.p = nn.Linear(WIDTH, 3 * WIDTH), 0.1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return joined(F.dropout(weights, self.p, training=self.training) @ v)


class SetsItsMode(ReadsItsMode):
    def __init__(self) -> None:
        super().__init__()
        self.p = 0.0  # what is on drops nothing here

    def forward(self, x: Tensor, training: bool = True) -> Tensor:
        self.training = training
        return super().forward(x)


class MadeAtTheFirstCall(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "qkv"):
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH).to(x)
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class MadeAtEachCall(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, nn.Linear(WIDTH, 3 * WIDTH).to(x)(x).chunk(3, -1))  # here
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class LearnedTemperature(nn.Module):
    """Queries and keys of length one, times a learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.temperature = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.factor()
        return joined(scores.softmax(-1) @ v)

    def factor(self) -> Tensor | float:
        return self.temperature


class TemperatureAsANumber(LearnedTemperature):
    def factor(self) -> float:
        return self.temperature.item()


CASES = [
    Case("gradient", TemperatureAsANumber, LearnedTemperature, of_module, has_line=False),
    Case("stays-in-eval", SetsItsMode, ReadsItsMode, of_module, has_line=False),
    Case("parameters-kept", MadeAtEachCall, MadeAtTheFirstCall, of_module),
]
