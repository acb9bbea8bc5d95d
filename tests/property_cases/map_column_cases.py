"""Attention within the rows of a map, and within its columns."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, split
from property_cases.surrounding_cases import of_map
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


class Columns(nn.Module):
    """Of (batch, rows, columns, channels): each column attends within itself."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        groups = self.grouped(x)
        q, k, v = map(split, self.qkv(groups).chunk(3, -1))
        return self.put_back(joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v), x)  # here

    def grouped(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    def put_back(self, read: Tensor, x: Tensor) -> Tensor:
        return read.view(x.shape[0], x.shape[2], x.shape[1], -1).transpose(1, 2)


class RunsOfRows(Columns):
    def grouped(self, x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[1], x.shape[3])

    def put_back(self, read: Tensor, x: Tensor) -> Tensor:
        return read.view(x.shape)


class Rows(Columns):
    """Each row attends within itself; columns do not."""

    def grouped(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)

    def put_back(self, read: Tensor, x: Tensor) -> Tensor:
        return read.view(x.shape)


def of_an_oblong_map(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    return of_map(module, 2, 3)


CASES = [
    Case("columns-whole", RunsOfRows, Columns, of_an_oblong_map),
    Case("columns-whole", RunsOfRows, Rows, of_an_oblong_map),
]
