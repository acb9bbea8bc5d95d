"""Blocks in which tokens ask a picture, and the picture asks the tokens."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from property_cases import WIDTH, joined, of_module, of_x_and_context, split
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, asks: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = split(self.q(asks)), split(self.k(keys)), split(self.v(values))
        weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)
        read: Tensor = self.out(joined(weights @ v))
        return read


class TwoWays(nn.Module):
    """A layer: the vectors that were given for the tokens are added to what asks, but where it is the first."""

    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.is_first = is_first
        self.own, self.asking, self.asked = (Attends() for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, image: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        read = self.own(x, x, x) if self.is_first else x + self.own(x + given, x + given, x)
        x = self.norms[0](read)
        x = self.norms[1](x + self.asking(x + given, image, image))
        x = self.norms[2](x + self.network(x))
        image = self.norms[3](image + self.asked(image, x + given, x))
        return x, image


class TwoWayLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoWays(number == 0) for number in range(2))

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        given = x
        for layer in self.layers:
            x, context = layer(x, context, given)
        return x, context


def test_what_asks_with_positions_is_no_residual() -> None:
    analysis = analyze(of_x_and_context(of_module(TwoWayLayers).target))
    assert (analysis.num_attentions, analysis.violations) == (6, [])
