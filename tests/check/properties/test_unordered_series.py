"""Forecasts from the last token of a time series whose tokens have no positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import drawn
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class TimeSeriesTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_input, self.out = nn.Linear(3, 8), nn.Linear(8, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def with_positions(self, x: Tensor) -> Tensor:
        return x

    def read_out(self, x: Tensor) -> Tensor:
        return x[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        x = self.with_positions(self.of_input(x))
        return self.out(self.read_out(x + self.attention(x, x, x)[0]))


class TimeSeriesWithPositions(TimeSeriesTransformer):
    def with_positions(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[1])[:, None].sin()


class TimeSeriesMeans(TimeSeriesTransformer):
    """All tokens are alike: they may be variables."""

    def read_out(self, x: Tensor) -> Tensor:
        return x.mean(1)


class StockOfASet(TimeSeriesTransformer):
    """Without positions: other stocks stand in any order, and the last one asks."""


class LastOfASet(TimeSeriesTransformer):
    """Nothing says that tokens follow one another."""


@pytest.mark.parametrize(
    ("kind", "is_wrong"),
    [
        (TimeSeriesTransformer, True),
        (TimeSeriesWithPositions, False),
        (TimeSeriesMeans, False),
        (StockOfASet, False),
        (LastOfASet, False),
    ],
)
def test_the_last_of_a_time_series_knows_in_which_order_the_others_stand(kind: type[nn.Module], is_wrong: bool) -> None:
    found = analyze(tokens_call(kind().double(), drawn(2, 5, 3, seed=1)))
    assert [each.property for each in found.violations] == ["positions-without-effect"] * is_wrong
