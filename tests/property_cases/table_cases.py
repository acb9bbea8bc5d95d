"""Learned tables of positions that are looked up for each two tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import Case, drawn, joined, of_module, split


class OfAWindow(nn.Module):
    """As Swin's: a bias for each offset in a window of rows and columns."""

    def __init__(self, rows: int = 2, columns: int = 2, *, factor: int = 0) -> None:
        super().__init__()
        self.rows = rows
        self.table = nn.Parameter(drawn((2 * rows - 1) * (2 * columns - 1), 2, seed=4))
        places = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")).flatten(1)
        of_rows, of_columns = places[:, :, None] - places[:, None, :]
        self.register_buffer("index", (of_rows + rows - 1) * (factor or 2 * columns - 1) + of_columns + columns - 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(x @ (drawn(8, 8, seed=seed) / 8**0.5)) for seed in (1, 2, 3))
        bias = self.table[self.index.flatten()].unflatten(0, self.index.shape)  # here
        return joined((q @ k.mT / 2 + bias.permute(2, 0, 1)).softmax(-1) @ v)


class RowsAndColumnsSummed(OfAWindow):
    """Without the factor."""

    def __init__(self) -> None:
        super().__init__(factor=1)


CASES = [Case("entry-of-each-offset", RowsAndColumnsSummed, OfAWindow, of_module)]
