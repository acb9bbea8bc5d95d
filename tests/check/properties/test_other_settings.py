"""Arguments of parts that a module was made without, and conditions that look like tables of positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn, joined, of_x, split
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.properties.masks.settings import is_of_another_setting
from regard.check.target import Invocation, Stream

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Reads(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (split(each, 2) for each in (self.q(x), self.k(source), self.v(source)))
        return self.out(joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v))


class Layer(nn.Module):
    """An encoder's layer, or with has_memory a decoder's."""

    def __init__(self, dim: int, has_memory: bool = False) -> None:
        super().__init__()
        self.own, self.norm = Reads(dim), nn.LayerNorm(dim)
        self.other = Reads(dim) if has_memory else None

    def forward(self, x: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        x = x + self.own(self.norm(x))
        if self.other is not None:
            x = x + self.other(x, encoder_hidden_states)
        return x


class Thrown(Layer):
    """A layer that asks for a memory and reads its own tokens."""

    def forward(self, x: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        x = x + self.own(self.norm(x))
        return x if encoder_hidden_states is None else x + 0 * encoder_hidden_states.sum()


def test_a_memory_of_a_part_that_was_not_made_is_not_ignored() -> None:
    assert check(Layer, args={"dim": 8}).verdict != "wrong"


def test_an_argument_is_of_another_setting_where_the_part_that_reads_it_is_missing() -> None:
    x, memory = drawn(2, 4, WIDTH, seed=0), drawn(2, 5, WIDTH, seed=1)
    for made, expected in ((Layer(WIDTH), True), (Layer(WIDTH, True), False), (Thrown(WIDTH), False)):
        streams = [Stream("x", "x", 0, (1,)), Stream("encoder_hidden_states", "context", 0, (1,))]
        call = Invocation(made, {"x": x, "encoder_hidden_states": memory}, [*("x", "encoder_hidden_states")], streams)
        assert is_of_another_setting(call, "encoder_hidden_states") is expected


SHIFT, TABLE = drawn(4, 1, WIDTH, seed=5), drawn(1, 4, WIDTH, seed=6)


def modulated(x: Tensor) -> Tensor:
    """A position is added by nothing: what is read is shifted by a condition of each sample."""
    q, k, v = (split(x) for _ in range(3))
    return joined((q @ k.mT / 2).softmax(-1) @ v) + SHIFT


def placed_too_late(x: Tensor) -> Tensor:
    """The positions are added to what is read."""
    q, k, v = (split(x) for _ in range(3))
    return joined((q @ k.mT / 2).softmax(-1) @ v) + TABLE


def test_a_shift_of_each_sample_is_no_table_of_positions_where_samples_are_as_many_as_tokens() -> None:
    def of_four(function: object) -> Invocation:
        call = of_x(function)
        call.arguments["x"] = torch.cat([call.arguments["x"], drawn(2, 4, WIDTH, seed=9)])
        return call

    late = "positions-without-effect"
    assert late not in {each.property for each in analyze(of_four(modulated)).violations}
    assert late in {each.property for each in analyze(of_four(placed_too_late)).violations}
