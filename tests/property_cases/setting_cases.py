"""Settings of a constructor that say that later keys are hidden."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module
from regard.check.target import Invocation


class Switched(nn.Module):
    """Later keys are hidden where `mask` is on.

    Args:
        mask: whether to apply an autoregressive mask.
    """

    blocked = -torch.inf

    def __init__(self, mask: bool = False) -> None:
        super().__init__()
        self.mask = mask
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5  # here
        if self.mask:
            scores = self.hidden(scores)
        return scores.softmax(-1) @ v

    def hidden(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones_like(scores).triu(1) > 0, self.blocked)


class SwitchedToZeros(Switched):
    blocked = 0.0


class SwitchedOnWithoutEffect(Switched):
    """Args:
    mask: whether to apply an autoregressive mask.
    """

    def hidden(self, scores: Tensor) -> Tensor:
        return scores


class OfAPart(nn.Module):
    """The setting is handed on, and read no more.

    Args:
        causal: whether it is causal.
    """

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal, self.part = causal, Switched(causal)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


class CausalUnlessTold(nn.Module):
    """A mask is combined with the causal one."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5  # here
        allowed = self.of_both(scores, mask)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        return scores.softmax(-1) @ v

    def of_both(self, scores: Tensor, mask: Tensor | None) -> Tensor | None:
        if not self.causal:
            return mask
        causal = torch.ones_like(scores).tril() > 0
        return causal if mask is None else mask & causal


class CausalAndNotRead(CausalUnlessTold):
    def __init__(self, causal: bool = True) -> None:
        super().__init__(causal)

    def of_both(self, scores: Tensor, mask: Tensor | None) -> Tensor | None:
        return mask


def with_a_mask(call: Invocation) -> Invocation:
    call.masks = ["mask"]
    return call


CASES = [
    Case("blocked-scores", SwitchedToZeros, Switched, of_module),
    Case("mask-pattern", SwitchedOnWithoutEffect, Switched, of_module, has_line=False),
    Case("mask-pattern", SwitchedOnWithoutEffect, OfAPart, of_module, has_line=False),
    Case("mask-pattern", CausalAndNotRead, CausalUnlessTold, lambda kind: with_a_mask(of_module(kind))),
]
