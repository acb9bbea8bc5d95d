"""Several values under one name, put together at one line and taken apart at another."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class MixesTwo(nn.Module):
    """What is read and what was there, each times a number that was set for it."""

    def __init__(self) -> None:
        super().__init__()
        of_input, of_read = 0.75, 0.25
        self.shares = (of_input, of_read)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return self.mixed(x, joined((q @ k.mT / 2).softmax(-1) @ v), self.shares)

    def mixed(self, x: Tensor, read: Tensor, shares: Any) -> Tensor:
        of_input, of_read = shares
        return of_input * x + of_read * read


class MixesTheOtherWayRound(MixesTwo):
    def mixed(self, x: Tensor, read: Tensor, shares: Any) -> Tensor:
        of_read, of_input = shares  # here
        return of_input * x + of_read * read


class TakesItsOwnOrder(MixesTwo):
    """What is handed over is put together anew, in the order that it is taken apart in."""

    def mixed(self, x: Tensor, read: Tensor, shares: Any) -> Tensor:
        of_input, of_read = shares
        both = (of_read, of_input)
        of_read, of_input = both
        return of_input * x + of_read * read


class CallsThemOtherwise(MixesTwo):
    """Other names say nothing of an order."""

    def mixed(self, x: Tensor, read: Tensor, shares: Any) -> Tensor:
        first, second = shares
        return first * x + second * read


class SwapsTwo(MixesTwo):
    """On purpose, and by no name for both."""

    def mixed(self, x: Tensor, read: Tensor, shares: Any) -> Tensor:
        of_input, of_read = shares
        of_read, of_input = of_input, of_read
        return of_read * x + of_input * read


CASES = [
    Case("unpacked-as-packed", MixesTheOtherWayRound, right, of_module)
    for right in (MixesTwo, TakesItsOwnOrder, CallsThemOtherwise, SwapsTwo)
]
