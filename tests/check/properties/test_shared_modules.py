"""One module that attends from each of two sequences to the other: two attentions, and no query with two softmaxes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn, split
from property_cases import joined as merged
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Shared(nn.Module):
    """Its queries are of one sequence, its keys and values of another."""

    axis = -1

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = split(self.q(x)), split(self.k(source)), split(self.v(source))
        return self.out(merged((q @ k.mT / 2).softmax(self.axis) @ v))


class OverQueries(Shared):
    axis = -2


class Matching(nn.Module):
    """Layers that attend to a sequence itself, and then to the other one."""

    def __init__(self, kind: Any = Shared) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(4))

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        for number, layer in enumerate(self.layers):
            sources = (right, left) if number % 2 else (left, right)
            read = layer(left, sources[0]), layer(right, sources[1])
            left, right = left + read[0], right + read[1]
        return left, right


def analysis(module: nn.Module) -> Analysis:
    prepare(module, 1)
    streams = [Stream("left", "x", 0, (1,)), Stream("right", "context", 0, (1,))]
    given = {"left": drawn(2, 3, WIDTH, seed=0), "right": drawn(2, 4, WIDTH, seed=1)}
    return analyze(Invocation(module, given, ["left", "right"], streams))


def test_two_sequences_may_attend_to_each_other_with_the_same_parameters() -> None:
    found = analysis(Matching())
    assert found.complete
    assert not [*found.violations, *found.designs]


def test_a_mistake_in_what_they_share_is_found() -> None:
    assert {each.property for each in analysis(Matching(OverQueries)).violations} == {"softmax-over-keys"}


@pytest.mark.parametrize("sums", [1, 2])
def test_two_softmaxes_of_one_query_may_not_be_added(sums: int) -> None:
    def added(left: Tensor, right: Tensor) -> Tensor:
        q, keys = left, [left, right][:sums]
        return sum(torch.softmax(q @ each.mT / WIDTH**0.5, -1) @ each for each in keys)  # type: ignore[return-value]

    streams = [Stream("left", "x", 0, (1,)), Stream("right", "context", 0, (1,))]
    given = {"left": drawn(2, 3, WIDTH, seed=0), "right": drawn(2, 4, WIDTH, seed=1)}
    found = analyze(Invocation(added, given, ["left", "right"], streams))
    assert {each.property for each in found.violations} >= ({"weights-sum-to-one"} if sums == 2 else set())
