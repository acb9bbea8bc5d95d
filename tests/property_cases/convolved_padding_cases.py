"""Convolutions beside attentions: what is padding is zeroed before they read it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_x_and_lengths

TOKENS = 6
PLACES = drawn(TOKENS, WIDTH, seed=60)


class ZeroedBefore(nn.Module):
    """Attention, then a convolution over the tokens; both leave out what comes after the length of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        is_padding = torch.arange(x.shape[1]) >= lengths[:, None]
        x = x + PLACES[: x.shape[1]]
        scores = (x @ x.mT / WIDTH**0.5).masked_fill(is_padding[:, None], -torch.inf)
        x = x + scores.softmax(-1) @ x
        return x + self.convolved(x.mT, is_padding[:, None]).mT

    def convolved(self, x: Tensor, is_padding: Tensor) -> Tensor:
        return self.mixed(x.masked_fill(is_padding, 0))


class ZeroedBehind(ZeroedBefore):
    def convolved(self, x: Tensor, is_padding: Tensor) -> Tensor:
        return self.mixed(x).masked_fill(is_padding, 0)  # here


class ZeroedAroundIt(ZeroedBefore):
    """Its bias leaves nothing where padding is."""

    def convolved(self, x: Tensor, is_padding: Tensor) -> Tensor:
        return self.mixed(x * ~is_padding) * ~is_padding


class NeverZeroed(ZeroedBefore):
    """Nothing says that the convolution should leave out padding."""

    def convolved(self, x: Tensor, is_padding: Tensor) -> Tensor:
        return self.mixed(x)


of_lengths = partial(of_x_and_lengths, tokens=TOKENS)
CASES = [
    Case("padding-before-convolutions", ZeroedBehind, ZeroedBefore, of_lengths),
    Case("padding-before-convolutions", ZeroedBehind, ZeroedAroundIt, of_lengths),
    Case("padding-before-convolutions", ZeroedBehind, NeverZeroed, of_lengths),
]
