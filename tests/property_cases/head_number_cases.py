"""Numbers that are learned for the scores of each head: sinks, temperatures, and scales that begin as logarithms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


class SinkOfEachHead(nn.Module):
    """A sink of each head, which joins its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def of(self, scores: Tensor) -> Tensor:
        return self.sinks[:, None, None].expand(*scores.shape[:-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5  # here
        weights = torch.cat([scores, self.of(scores)], -1).softmax(-1)[..., :-1]
        return self.out(joined(weights @ v))


class SinkOfEveryOtherToken(SinkOfEachHead):
    def of(self, scores: Tensor) -> Tensor:
        return self.sinks.repeat(scores.numel() // scores.shape[-1] // HEADS).view(*scores.shape[:-1], 1)


class Cosines(nn.Module):
    """Scores of unit vectors, times what a subclass learns."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def of(self) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT  # here
        return self.out(joined((scores * self.of()).softmax(-1) @ v))


class TemperatureOfEachHead(Cosines):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(HEADS, 1, 1))

    def of(self) -> Tensor:
        return self.temperature


class TemperatureOfEachSample(TemperatureOfEachHead):
    """It is one of each head, and the batch is as large."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(HEADS, 1, 1, 1))


class ScaleBegunAsALogarithm(Cosines):
    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(HEADS, 1, 1)))

    def of(self) -> Tensor:
        return self.logit_scale.clamp(max=math.log(100))


class ScaleByItsExponential(ScaleBegunAsALogarithm):
    def of(self) -> Tensor:
        return self.logit_scale.clamp(max=math.log(100)).exp()


class OneScaleBegunAsALogarithm(Cosines):
    """One for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))

    def of(self) -> Tensor:
        return self.scale


class ScaleByThePower(OneScaleBegunAsALogarithm):
    def of(self) -> Tensor:
        return math.e**self.scale


CASES = [
    Case("number-of-its-head", SinkOfEveryOtherToken, SinkOfEachHead, of_module),
    Case("number-of-its-head", TemperatureOfEachSample, TemperatureOfEachHead, of_module),
    Case("scale-of-its-logarithm", ScaleBegunAsALogarithm, ScaleByItsExponential, of_module),
    Case("scale-of-its-logarithm", OneScaleBegunAsALogarithm, ScaleByThePower, of_module),
]
