"""Learned tables of positions that are looked up for each two tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from property_cases import Case, drawn, joined, of_module, of_x, split
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


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


class InWindows(OfAWindow):
    """The same of the two windows of a model, side by side."""

    def __init__(self, *, factor: int = 0) -> None:
        super().__init__(factor=factor)
        self.embed = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        windows = self.embed(x).unflatten(1, (self.rows, 2, -1)).transpose(1, 2)
        made = super().forward(windows.flatten(0, 1).flatten(1, 2)).unflatten(0, (-1, 2))
        return made.unflatten(2, (self.rows, -1)).transpose(1, 2).flatten(1, 3)


class InWindowsSummed(InWindows):
    def __init__(self) -> None:
        super().__init__(factor=1)


class InWindowsViewed(InWindows):
    """A table (offsets, heads) is viewed as (heads, queries, keys)."""

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table[self.index.flatten()].view(-1, *self.index.shape)
        windows = self.embed(x).unflatten(1, (self.rows, 2, -1)).transpose(1, 2).flatten(0, 1).flatten(1, 2)
        q, k, v = (split(windows @ (drawn(8, 8, seed=seed) / 8**0.5)) for seed in (1, 2, 3))
        made = joined((q @ k.mT / 2 + bias).softmax(-1) @ v).unflatten(0, (-1, 2))  # here
        return made.unflatten(2, (self.rows, -1)).transpose(1, 2).flatten(1, 3)


class InBuckets(nn.Module):
    """As T5's decoder: keys up to 3 tokens before the query have a bias each, those before these share ranges."""

    def __init__(self, *, ratio: float = 4.0) -> None:
        super().__init__()
        self.num_buckets, self.max_distance, self.ratio = 8, 16, ratio
        self.table = nn.Embedding(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(x @ (drawn(8, 8, seed=seed) / 8**0.5)) for seed in (1, 2, 3))
        tokens = torch.arange(x.shape[1])
        distance = (tokens[:, None] - tokens).clamp(min=0)
        far = 4 + ((distance.clamp(min=1) / 4).log() / math.log(self.ratio) * 4).long()
        buckets = torch.where(distance < 4, distance, far.clamp(max=7))
        bias = self.table(buckets).permute(2, 0, 1)  # here
        scores = (q @ k.mT / 2 + bias).masked_fill(tokens > tokens[:, None], -torch.inf)
        return joined(scores.softmax(-1) @ v)


class InNarrowBuckets(InBuckets):
    """The logarithm is divided by none."""

    def __init__(self) -> None:
        super().__init__(ratio=math.e)


def of_eight_tokens(kind: Callable[[], nn.Module]) -> Invocation:
    """A call of two windows."""
    module = kind()
    prepare(module, 1)
    return of_x(module, tokens=8)


CASES = [
    Case("entry-of-each-offset", RowsAndColumnsSummed, OfAWindow, of_module),
    Case("entry-of-each-offset", InWindowsSummed, InWindows, of_eight_tokens),
    Case("table-by-head", InWindowsViewed, InWindows, of_eight_tokens),
    Case("bucket-of-each-distance", InNarrowBuckets, InBuckets, of_module),
]
