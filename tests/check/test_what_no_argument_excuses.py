"""Arguments of which nothing tells what they are: what no such argument excuses is wrong all the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import joined, split
from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class BesideATable(nn.Module):
    """Attention of queries, keys and values, whose scores are moved by what is made of a table."""

    output = 3

    def __init__(self, d_model: int = 32) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, zorp: Tensor) -> Tensor:
        matrices = [*self.linears]
        q, k, v = (split(f(x), 4) for f, x in zip(matrices[:3], (query, key, value), strict=True))
        left, right, _, _ = torch.chunk(zorp, 4, dim=-1)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + (left - right)[:, None, None, :, 0]
        return self.linears[self.output](joined(scores.softmax(-1) @ v))


class ByTheMatrixOfItsValues(BesideATable):
    output = 2


def test_an_output_by_the_matrix_of_the_values_is_wrong_whatever_an_argument_is() -> None:
    found = check(ByTheMatrixOfItsValues)
    assert found.verdict == "wrong"
    assert "the matrix that makes the values" in str(found)


def test_with_a_matrix_of_its_own_it_is_not() -> None:
    assert check(BesideATable).verdict != "wrong"
