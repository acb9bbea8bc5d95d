"""Axial attention of a map: one attention along the rows, another one along the columns."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, split
from property_cases.map_column_cases import of_an_oblong_map


class Line(nn.Module):
    """Attention within the last axis but one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x.flatten(0, 1)).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).view(x.shape)


class AlongBoth(nn.Module):
    """Each place of (batch, rows, columns, channels) reads its row and its column."""

    def __init__(self) -> None:
        super().__init__()
        self.of_row, self.of_column = Line(), Line()

    def forward(self, x: Tensor) -> Tensor:
        return self.of_row(x) + self.second(x)

    def second(self, x: Tensor) -> Tensor:
        return self.of_column(x.transpose(1, 2)).transpose(1, 2)


class AlongRowsTwice(AlongBoth):
    """Each place of (batch, rows, columns, channels) reads its row and its column."""

    def second(self, x: Tensor) -> Tensor:
        return self.of_column(x)


class TwoOfRows(nn.Module):
    """Two attentions within each row of a map."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Line(), Line()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x)


class ColumnsByConvolution(TwoOfRows):
    """Two attentions within each row; what stands in one column is mixed by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Conv2d(WIDTH, WIDTH, (3, 1), padding=(1, 0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.mixed(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


CASES = [
    Case("axes-of-a-map", AlongRowsTwice, AlongBoth, of_an_oblong_map, has_line=False, attentions=2),
    Case("axes-of-a-map", AlongRowsTwice, TwoOfRows, of_an_oblong_map, has_line=False, attentions=2),
    Case("axes-of-a-map", AlongRowsTwice, ColumnsByConvolution, of_an_oblong_map, has_line=False, attentions=2),
]
