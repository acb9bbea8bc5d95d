"""Gates, from closed to open: one sigmoid makes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class Gated(nn.Module):
    """What each token has read passes a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.gate, self.out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid()), nn.Linear(WIDTH, WIDTH)

    def opened(self, x: Tensor) -> Tensor:
        opened: Tensor = self.gate(x)
        return opened

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.opened(x) * self.attention(x, x, x)[0])
        return y


class TwoGates(Gated):
    """One gate holds another one."""

    def opened(self, x: Tensor) -> Tensor:
        return super().opened(x * super().opened(x))


class Sharpened(Gated):
    """A second sigmoid, of what was moved and stretched: it opens and closes."""

    def opened(self, x: Tensor) -> Tensor:
        return (8 * (super().opened(x) - 0.5)).sigmoid()


class WrittenInItsPlace(Gated):
    """The memory of a sigmoid is written over by what is no sigmoid."""

    def opened(self, x: Tensor) -> Tensor:
        opened = super().opened(x).clone()
        return opened.mul_(x).sigmoid()


class OfALayerWithGates(Gated):
    """The gates of a recurrent layer lie side by side, and each is a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def opened(self, x: Tensor) -> Tensor:
        return super().opened(self.layer(x)[0])


class SigmoidOfTheGate(Gated):
    def opened(self, x: Tensor) -> Tensor:
        return super().opened(x).sigmoid()  # here


class SigmoidInParts(Gated):
    def opened(self, x: Tensor) -> Tensor:
        parts = super().opened(x).chunk(2, -1)
        return torch.cat(parts, -1).sigmoid() - 0.5  # here


CASES = [
    *(
        Case("squashed-once", SigmoidOfTheGate, right, of_module)
        for right in (Gated, TwoGates, Sharpened, OfALayerWithGates)
    ),
    Case("squashed-once", SigmoidInParts, WrittenInItsPlace, of_module),
]
