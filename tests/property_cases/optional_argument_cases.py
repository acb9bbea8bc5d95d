"""Masks that may be left out by their default, and lines that read them all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split
from regard.check.target import Invocation


class AskedFirst(nn.Module):
    """Attention whose mask may be None."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(self.attend(q, k, v, mask))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: Any) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if hidden is not None:
            hidden = hidden.to(q.device)
            scores = scores.masked_fill(~hidden[:, None], -torch.inf)
        return scores.softmax(-1) @ v


class ReadFirst(AskedFirst):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: Any) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        hidden = hidden.to(q.device)  # here
        if hidden is not None:
            scores = scores.masked_fill(~hidden[:, None], -torch.inf)
        return scores.softmax(-1) @ v


class NeverAsked(AskedFirst):
    """It has to be given, whatever its default is."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: Any) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(~hidden.to(q.device)[:, None], -torch.inf).softmax(-1) @ v


class AskedForBySetting(AskedFirst):
    """A setting says that it is given."""

    has_mask = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: Any) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.has_mask:
            hidden = hidden.to(q.device)
        if hidden is not None:
            scores = scores.masked_fill(~hidden[:, None], -torch.inf)
        return scores.softmax(-1) @ v


def of_x_and_mask(kind: Any) -> Invocation:
    """A call with a mask that hides nothing."""
    call = of_module(kind)
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    return replace(call, arguments={**call.arguments, "mask": mask}, positional=["x", "mask"], masks=["mask"])


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


CASES = [
    Case("default-runs", ReadFirst, AskedFirst, of_x_and_mask),
    Case("default-runs", ReadFirst, NeverAsked, of_x_and_mask),
    Case("default-runs", ReadFirst, AskedForBySetting, of_x_and_mask),
    Case("default-runs", AsksForTheValues, AsksForTheMask, of_x_and_mask),
    Case("default-runs", AsksForTheValues, AsksForNothing, of_x_and_mask),
]
