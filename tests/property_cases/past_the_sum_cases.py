"""Blocks whose network reads the sum with the attention, or what the block was given."""

from __future__ import annotations

from torch import Tensor

from property_cases import Case, of_module
from property_cases.wiring_cases import PreNormBlock


class OneAfterTheOther(PreNormBlock):
    """The sum with the attention has a line of its own."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.attended(self.norm1(x))
        return y + self.mlp(self.norm2(self.of_network(x, y)))  # here

    def of_network(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class NetworkOfTheInput(OneAfterTheOther):
    def of_network(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class NetworkOfTheKeptInput(PreNormBlock):
    """The input is kept under a name of its own, and the network gets that."""

    def forward(self, x: Tensor) -> Tensor:
        skip = x
        stream = self.attended(self.norm1(x)) + skip
        hidden = self.mlp(self.norm2(skip))
        stream = hidden + stream  # here
        return stream


class SaidToBeParallel(NetworkOfTheInput):
    """The network does not wait for the attention: both are computed in parallel."""


class MadeBeforeTheSum(PreNormBlock):
    """Each branch has a name, and all are added up in the end."""

    def forward(self, x: Tensor) -> Tensor:
        read, hidden = self.attended(self.norm1(x)), self.mlp(self.norm2(x))
        x = x + read
        return x + hidden


class InOneSum(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attended(self.norm1(x)) + self.mlp(self.norm2(x))


CASES = [
    Case("network-reads-the-sum", NetworkOfTheInput, OneAfterTheOther, of_module),
    Case("network-reads-the-sum", NetworkOfTheInput, SaidToBeParallel, of_module),
    Case("network-reads-the-sum", NetworkOfTheKeptInput, MadeBeforeTheSum, of_module),
    Case("network-reads-the-sum", NetworkOfTheKeptInput, InOneSum, of_module),
]
