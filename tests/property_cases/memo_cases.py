"""Functions that keep what they make for later calls."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split
from regard.check.target import Invocation

KEPT: dict[Any, Tensor] = {}
OF_EACH: dict[Any, Tensor] = {}


def window_of(count: int, width: int) -> Tensor:
    places = torch.arange(count)
    return (places[:, None] - places).abs() <= width


def kept_by_length(count: int, width: int) -> Tensor:
    if count not in KEPT:
        KEPT[count] = window_of(count, width)  # here
    return KEPT[count]


def kept_by_both(count: int, width: int, like: Tensor | None = None) -> Tensor:
    key = (count, width)
    if key not in OF_EACH:
        OF_EACH[key] = window_of(count, width).to(None if like is None else like.device)
    return OF_EACH[key]


class NearAndFar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.read(x, self.near, 1), self.far, 2)

    def read(self, x: Tensor, matrix: nn.Linear, width: int) -> Tensor:
        q, k, v = map(split, matrix(x).chunk(3, -1))
        return joined(F.scaled_dot_product_attention(q, k, v, attn_mask=self.window(x, width)))

    def window(self, x: Tensor, width: int) -> Tensor:
        return kept_by_both(x.shape[1], width, x)


class NearTwice(NearAndFar):
    def window(self, x: Tensor, width: int) -> Tensor:
        return kept_by_length(x.shape[1], width)


class Windowed(nn.Module):
    """A layer with a table of its own, kept for all layers."""

    tables: dict[Any, Tensor] = {}  # noqa: RUF012

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, count: int) -> Tensor:
        if count not in self.tables:
            self.tables[count] = window_of(count, self.width)  # here
        return self.tables[count]


class WindowedApart(Windowed):
    """One that keeps its own."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.tables = {}


class NearTwiceByClass(NearAndFar):
    kind = Windowed

    def __init__(self) -> None:
        super().__init__()
        self.windows = nn.ModuleList([self.kind(1), self.kind(2)])

    def window(self, x: Tensor, width: int) -> Tensor:
        return self.windows[width - 1](x.shape[1])


class NearAndFarByClass(NearTwiceByClass):
    kind = WindowedApart


def of_a_second_call(kind: Any) -> Invocation:
    """A call of a module that was called before, as those that are found are: what it keeps is there."""
    call = of_module(kind)
    call.run()
    return call


CASES = [
    Case("remembered-by-all", NearTwice, NearAndFar, of_a_second_call, attentions=2),
    Case("remembered-by-all", NearTwiceByClass, NearAndFarByClass, of_a_second_call, attentions=2),
]
