"""Lists of layers of which a call takes the one of its step, and parts that a comment of several lines leaves out."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class Stepped(nn.Module):
    """The queries of each step have a layer of their own."""

    def __init__(self, d_model: int = 16, length: int = 3) -> None:
        super().__init__()
        self.of_steps = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(length))
        self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(3))

    def asked(self, x: Tensor, step: int) -> Tensor:
        return self.of_steps[step](x)

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        scores = self.asked(x, step) @ self.k(x).mT / x.shape[-1] ** 0.5
        return self.out(scores.softmax(-1) @ self.v(x))


class OneShort(Stepped):
    """The queries go through several layers, but for the last one."""

    def asked(self, x: Tensor, step: int) -> Tensor:
        for number in range(len(self.of_steps) - 1):
            x = self.of_steps[number](x)
        return x


class LeftOut(nn.Module):
    """A part is made for another task."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.query_control = nn.Linear(2 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        # The control of the query runs for the first task,
        # but is not included for this one.
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return scores.softmax(-1) @ self.v(x)


class Forgotten(LeftOut):
    def forward(self, x: Tensor) -> Tensor:
        # The query is scaled before.
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return scores.softmax(-1) @ self.v(x)


@pytest.mark.parametrize("kind", [Stepped, LeftOut])
def test_layers_of_other_steps_and_tasks_are_unused(kind: type[nn.Module]) -> None:
    assert check(kind).verdict in RIGHT


@pytest.mark.parametrize("kind", [OneShort, Forgotten])
def test_a_layer_that_no_call_takes_is_wrong(kind: type[nn.Module]) -> None:
    assert check(kind).verdict == "wrong"
