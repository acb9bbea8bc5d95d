"""Numbers of a run with a cache beside those of a run without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.check.properties.caches.comparison import SAME, same_tensor

NAN, INF = torch.nan, torch.inf


def row(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (row(1, 2), row(1, 2 + SAME), True),
        (row(1, 2), row(1, 2 + 4 * SAME), False),
        (row(1, 2), row(1, 2, 3), False),
        (row(1, INF), row(1, INF), True),
        (row(1, -INF), row(1, INF), False),
        (row(1, NAN), row(1, NAN), True),
        (row(1, NAN), row(1, 2), False),
        (row(1, 2), row(1, NAN), False),
        (row(1, 2) > 1, row(0, 3) > 1, True),
        (row(1, 2) > 1, row(3, 2) > 1, False),
    ],
)
def test_two_tensors_are_the_same_but_for_rounding(one: Tensor, other: Tensor, same: bool) -> None:
    assert same_tensor(one, other) == same


def test_tensors_without_numbers_are_the_same_where_their_shapes_are() -> None:
    assert same_tensor(torch.empty(0), torch.empty(0))
    assert not same_tensor(torch.empty(0), torch.empty(2, 0))
