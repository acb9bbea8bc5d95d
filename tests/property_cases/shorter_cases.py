"""Attentions of fewer tokens than were handed over: their mask is of the lengths of what is left."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_x_and_lengths

TOKENS, STRIDE = 12, 3


class OfLeft(nn.Module):
    """Attention of one token for three; it returns how many there are of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.fewer = nn.Conv1d(WIDTH, WIDTH, STRIDE, STRIDE)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, left = self.fewer(x.mT).mT, lengths // STRIDE
        is_padding = torch.arange(x.shape[1]) >= self.counted(lengths, left)[:, None]
        scores = (x @ x.mT / WIDTH**0.5).masked_fill(is_padding[:, None], -1e9)
        return scores.softmax(-1) @ x, left  # here

    def counted(self, lengths: Tensor, left: Tensor) -> Tensor:
        return left


class OfAll(OfLeft):
    def counted(self, lengths: Tensor, left: Tensor) -> Tensor:
        return lengths


class OfNone(OfLeft):
    """Nothing is hidden."""

    def counted(self, lengths: Tensor, left: Tensor) -> Tensor:
        return torch.full_like(lengths, TOKENS)


class OfLeftAlone(OfLeft):
    """Lengths are of the tokens that are left."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = self.fewer(x.mT).mT
        is_padding = torch.arange(x.shape[1]) >= lengths[:, None]
        scores = (x @ x.mT / WIDTH**0.5).masked_fill(is_padding[:, None], -1e9)
        return scores.softmax(-1) @ x, lengths


of_lengths = partial(of_x_and_lengths, tokens=TOKENS)
CASES = [
    Case("mask-of-the-shorter", OfAll, OfLeft, of_lengths, has_line=False),
    Case("mask-of-the-shorter", OfAll, OfNone, of_lengths, has_line=False),
    Case("mask-of-the-shorter", OfAll, OfLeftAlone, of_lengths, has_line=False),
]
