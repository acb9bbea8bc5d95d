"""Projections of several heads."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


class OneMatrixForAllHeads(nn.Module):
    """The channels are split first, and each part is projected by the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH // HEADS, WIDTH // HEADS, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)

    def projected(self, x: Tensor, matrix: nn.Linear) -> Tensor:
        return matrix(split(x))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.projected(x, each) for each in (self.q, self.k, self.v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # here
        return self.o(joined(weights @ v))


class MatricesOfEachHead(OneMatrixForAllHeads):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def projected(self, x: Tensor, matrix: nn.Linear) -> Tensor:
        return split(matrix(x))


class SharedMatrix(OneMatrixForAllHeads):
    """All heads share one matrix."""


CASES = [
    Case("heads-of-their-own", OneMatrixForAllHeads, MatricesOfEachHead, of_module),
    Case("heads-of-their-own", OneMatrixForAllHeads, SharedMatrix, of_module),
]
