"""Numbers that are learned for the scores, which are as many as the heads, or begin as logarithms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from property_cases import HEADS, WIDTH, drawn, joined, of_module, of_x, split
from property_cases.head_number_cases import Cosines, SinkOfEachHead
from regard.check.properties.analyze import analyze

NAMES = {"number-of-its-head", "scale-of-its-logarithm"}


def told(kind: type[nn.Module]) -> set[str]:
    return {each.property for each in analyze(of_module(kind)).violations} & NAMES


class SlopesAlongTheSamples(nn.Module):
    """A bias by distance, whose slopes of the heads stand on the axis of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2.0**-4, 2.0**-8])[:HEADS])  # of each head
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[1])
        distance = (places[:, None] - places).abs()
        scores = q @ k.mT / q.shape[-1] ** 0.5 - self.slopes.view(-1, 1, 1, 1) * distance
        return joined(scores.softmax(-1) @ v)


class LogarithmOfATemperature(Cosines):
    """Scores are divided by what begins as the logarithm of a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.07)))

    def of(self) -> Tensor:
        return -self.log_temperature


@pytest.mark.parametrize(
    ("kind", "name"),
    [(SlopesAlongTheSamples, "number-of-its-head"), (LogarithmOfATemperature, "scale-of-its-logarithm")],
)
def test_other_code_with_the_same_mistake_is_told(kind: type[nn.Module], name: str) -> None:
    assert told(kind) == {name}


class SharesOfBranches(nn.Module):
    """As many parts of the scores as heads, with a number each: of content and of distance."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.ones(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[1])
        near = -(places[:, None] - places).abs()
        scores = self.shares[0] * q @ k.mT / q.shape[-1] ** 0.5 + self.shares[1] * near
        return joined(scores.softmax(-1) @ v)


class CalledTwice(nn.Module):
    """The sinks of the first call change what the second one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SinkOfEachHead()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.attention(x)


class Positive(Cosines):
    """What begins as a logarithm goes through another function that keeps it positive."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(math.log(math.e**10 - 1)))

    def of(self) -> Tensor:
        return F.softplus(self.scale)


class Itself(Cosines):
    """A scale that begins as a number, and not as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))

    def of(self) -> Tensor:
        return self.scale


@pytest.mark.parametrize("kind", [SharesOfBranches, CalledTwice, Positive, Itself])
def test_right_code_is_not(kind: type[nn.Module]) -> None:
    assert told(kind) == set()


def test_what_has_no_parameters_is_not_asked() -> None:
    sinks = drawn(HEADS, 1, 1, seed=3)

    def attend(x: Tensor) -> Tensor:
        q = k = v = split(x)
        return joined((q @ k.mT * sinks.abs()).softmax(-1) @ v)

    assert {each.property for each in analyze(of_x(attend)).violations} & NAMES == set()
