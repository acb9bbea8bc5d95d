"""Two streams that read each other, each added to its own before both become one."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class Streams(nn.Module):
    """Each stream reads the other one."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.read_1, self.read_2 = (nn.MultiheadAttention(d_model, 2, batch_first=True) for _ in range(2))
        self.norm_1, self.norm_2, self.out = nn.LayerNorm(d_model), nn.LayerNorm(d_model), nn.Linear(d_model, d_model)

    def forward(self, one_features: Tensor, two_features: Tensor) -> Tensor:
        first = self.norm_1(one_features + self.read_1(one_features, two_features, two_features)[0])
        second = self.norm_2(two_features + self.read_2(two_features, one_features, one_features)[0])
        return self.out((first + second) / 2)


class AsksWithTheInput(Streams):
    """What was read first is lost to the second attention."""

    def forward(self, one_features: Tensor, two_features: Tensor) -> Tensor:
        first = self.norm_1(one_features + self.read_1(one_features, one_features, one_features)[0])
        return self.out(self.norm_2(first + self.read_2(one_features, two_features, two_features)[0]))


def test_each_of_two_streams_asks_with_its_own() -> None:
    assert check(Streams).verdict in RIGHT


def test_what_is_added_to_the_attention_before_asks_with_it() -> None:
    assert "queries-from-their-input" in [each.id for each in check(AsksWithTheInput).causes]
