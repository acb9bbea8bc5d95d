"""Masks that are None by default, and the conditions below which they are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module
from regard.check.target import Invocation


class AsksForTheValues(nn.Module):
    """Attention of one head with an optional mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, value = self.qkv(x).chunk(3, -1)
        value = value.contiguous()
        scores = q @ k.mT / WIDTH**0.5
        if value is not None:  # here
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return scores.softmax(-1) @ value


class AsksForTheMask(AsksForTheValues):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, value = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return scores.softmax(-1) @ value


class AsksForNothing(AsksForTheValues):
    """The mask has to be given, whatever its default is for."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, value = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(mask == 0, -torch.inf)
        return scores.softmax(-1) @ value


def with_a_mask(kind: Any) -> Invocation:
    call = of_module(kind)
    call.arguments["mask"] = torch.ones(2, 4, 4, dtype=torch.bool)
    call.masks, call.positional = ["mask"], ["x", "mask"]
    return call


CASES = [
    Case("default-runs", AsksForTheValues, AsksForTheMask, with_a_mask),
    Case("default-runs", AsksForTheValues, AsksForNothing, with_a_mask),
]
