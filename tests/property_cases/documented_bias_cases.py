"""Layers that a comment says to have no bias."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class OneHasABias(nn.Module):
    """Attention of two heads."""

    def __init__(self) -> None:
        super().__init__()
        # Three projections of the same vectors.
        # bias=False is usual in such models.
        self.ask = nn.Linear(WIDTH, WIDTH, bias=False)
        self.match = nn.Linear(WIDTH, WIDTH, bias=False)
        self.hand = nn.Linear(WIDTH, WIDTH, bias=True)  # here

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.ask(x)), split(self.match(x)), split(self.hand(x))
        return joined((q @ k.mT / 2).softmax(-1) @ v)


class TheLastHasABias(OneHasABias):
    """The same with another comment for another layer."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        # No bias
        self.ask = nn.Linear(WIDTH, WIDTH, bias=False)
        self.match = nn.Linear(WIDTH, WIDTH, bias=False)

        self.hand = nn.Linear(WIDTH, WIDTH)


class KeysHaveNoBias(OneHasABias):
    """The same with a comment that is of some of the layers."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        # no bias but for the values: it would cancel in the softmax, or nearly so
        self.ask = nn.Linear(WIDTH, WIDTH, bias=False)
        self.match = nn.Linear(WIDTH, WIDTH, bias=False)
        self.hand = nn.Linear(WIDTH, WIDTH)


CASES = [
    Case("bias-as-documented", OneHasABias, TheLastHasABias, of_module),
    Case("bias-as-documented", OneHasABias, KeysHaveNoBias, of_module),
]
