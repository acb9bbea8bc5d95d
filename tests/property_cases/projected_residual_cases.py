"""Residuals that go around an attention and its matrices, or around all but that of the queries."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class AddsItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v, self.fc = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q = self.w_q(x)
        read = joined((split(q) @ split(self.w_k(x)).mT / 2).softmax(-1) @ split(self.w_v(x)))
        return self.norm(self.added(x, q, read))

    def added(self, x: Tensor, q: Tensor, read: Tensor) -> Tensor:
        return x + self.fc(read)


class AddsItsQueries(AddsItsInput):
    def added(self, x: Tensor, q: Tensor, read: Tensor) -> Tensor:
        return q + self.fc(read)  # here


class AddsItsQueriesAsAResidual(AddsItsInput):
    """Without a matrix for the heads."""

    def __init__(self) -> None:
        super().__init__()
        del self.fc

    def added(self, x: Tensor, q: Tensor, read: Tensor) -> Tensor:
        # Residual connection
        return read + q  # here


class AddsItsInputAsAResidual(AddsItsQueriesAsAResidual):
    def added(self, x: Tensor, q: Tensor, read: Tensor) -> Tensor:
        # Residual connection
        return read + x


class MAB(AddsItsQueriesAsAResidual):
    """That of the Set Transformer."""

    def added(self, x: Tensor, q: Tensor, read: Tensor) -> Tensor:
        # Residual connection
        return q + read


class AddsToItsQueriesUnsaid(AddsItsQueriesAsAResidual):
    """Nothing says that what is added is meant as the way around."""

    def added(self, x: Tensor, q: Tensor, read: Tensor) -> Tensor:
        return q + read


class EmbedsFirst(nn.Module):
    """The stream itself begins behind the first matrix: queries, keys and values are all made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        read = joined((split(x) @ split(self.k(x)).mT / 2).softmax(-1) @ split(self.v(x)))
        return x + self.out(read)


CASES = [
    Case("residual-of-the-input", AddsItsQueries, AddsItsInput, of_module),
    Case("residual-of-the-input", AddsItsQueries, EmbedsFirst, of_module),
    Case("residual-of-the-input", AddsItsQueriesAsAResidual, AddsItsInputAsAResidual, of_module),
    Case("residual-of-the-input", AddsItsQueriesAsAResidual, MAB, of_module),
    Case("residual-of-the-input", AddsItsQueriesAsAResidual, AddsToItsQueriesUnsaid, of_module),
]
