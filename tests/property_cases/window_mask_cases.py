"""Attention within windows that are given a mask each."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module, of_x
from regard.check.target import Invocation


class Windows(nn.Module):
    """Window attention of the Swin Transformer, x (windows of a batch, tokens, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores.unflatten(0, (-1, len(mask))) + mask).flatten(0, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        scores = scores if mask is None else self.masked(scores, mask)
        return scores.softmax(-1) @ v


class WindowsFirst(Windows):
    """Window attention of the Swin Transformer, x (windows of a batch, tokens, width)."""

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores.unflatten(0, (len(mask), -1)) + mask[:, None]).flatten(0, 1)


class WindowsOfAnything(WindowsFirst):
    """Attention in groups: the samples of a group follow one another and have one mask."""


def with_mask(kind: Any) -> Invocation:
    return of_x(of_module(kind).target, masks=("mask",))


CASES = [
    Case("mask-of-its-window", WindowsFirst, right, with_mask, has_line=False) for right in (Windows, WindowsOfAnything)
]
