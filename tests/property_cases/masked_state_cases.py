"""Masks of padding in causal linear attention, whose sums may go on from an earlier part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_x, split
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

State = tuple[Tensor, Tensor]


class MaskedSums(nn.Module):
    """Causal linear attention. A later part of a text goes on from the state of an earlier one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def hidden(self, k: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        return k if mask is None else k * mask[:, None, :, None]

    def forward(self, x: Tensor, mask: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        q, k = q.relu() + 0.1, self.hidden(k.relu() + 0.1, mask, state)
        sums, total = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2), k.cumsum(2)
        if state is not None:
            sums, total = sums + state[0][:, :, None], total + state[1][:, :, None]
        read = torch.einsum("bhnd,bhnde->bhne", q, sums) / ((q * total).sum(-1, keepdim=True) + 1e-6)
        return joined(read), (sums[:, :, -1], total[:, :, -1])


class MaskedInTheFirstPart(MaskedSums):
    """Causal linear attention. A later part of a text goes on from the state of an earlier one."""

    def hidden(self, k: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        return super().hidden(k, mask if state is None else None, state)


class GoesOnByTokens(MaskedInTheFirstPart):
    """Causal linear attention. With a state it reads one more token, which is no padding."""


class MaskedBeforeTheFeatures(MaskedSums):
    """Causal linear attention; the state of padding is left as it was."""

    def hidden(self, k: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        return k if mask is None else k * (0.5 + 0.5 * mask[:, None, :, None])


def with_mask(kind: Any) -> Invocation:
    """A call of a module that may be given a mask."""
    module = kind()
    prepare(module, 1)
    return of_x(module, masks=("mask",), tokens=5)


CASES = [
    Case("mask-argument", MaskedInTheFirstPart, MaskedSums, with_mask, has_line=False),
    Case("mask-argument", MaskedInTheFirstPart, GoesOnByTokens, with_mask, has_line=False),
    Case("mask-argument", MaskedBeforeTheFeatures, MaskedSums, with_mask, has_line=False),
]
