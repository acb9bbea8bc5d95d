"""What the first numbers of parameters have in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.check.target.first_numbers import equal_units


@pytest.mark.parametrize(
    ("matrix", "units"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]), [[0, 2]]),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), []),
        (torch.ones(1, 3), []),
        (torch.ones(2, 0), []),  # as where there are more heads than channels
        (torch.ones(0, 2), []),
    ],
    ids=["two of three", "none", "one row", "no columns", "no rows"],
)
def test_rows_that_hold_the_same_numbers(matrix: Tensor, units: list[list[int]]) -> None:
    assert equal_units(matrix) == units
