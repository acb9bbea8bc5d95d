"""Masks that a block is made with: it moves them to where its tokens are, and hands them on, or drops them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module

HIDDEN = torch.ones(4, 4).triu(1).bool()
"""What comes later."""


class Block(nn.Module):
    """Hands on what it was made with."""

    def __init__(self, attn_mask: Tensor | None = None) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.attn_mask = attn_mask

    def handed_on(self, x: Tensor) -> Tensor | None:
        self.attn_mask = self.attn_mask.to(x.device) if self.attn_mask is not None else None
        return self.attn_mask

    def forward(self, x: Tensor) -> Any:
        return x + self.attn(x, x, x, attn_mask=self.handed_on(x), need_weights=False)[0]


class DropsWhatItMoved(nn.Module):
    def __init__(self, attn_mask: Tensor | None = None) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.attn_mask = attn_mask

    def forward(self, x: Tensor) -> Any:
        self.attn_mask = self.attn_mask.to(x.device) if self.attn_mask is not None else None
        return x + self.attn(x, x, x, need_weights=False)[0]


class DropsWhatItCut(nn.Module):
    def __init__(self, causal_mask: Tensor) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.causal_mask = causal_mask

    def forward(self, x: Tensor) -> Any:
        tokens = x.shape[1]
        mask = self.causal_mask[:tokens, :tokens].to(x.device)  # noqa: F841
        return x + self.attn(x, x, x, need_weights=False)[0]


class KeepsWhatItCut(nn.Module):
    """What it keeps under another name is read by a function within."""

    def __init__(self, causal_mask: Tensor) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.causal_mask = causal_mask

    def forward(self, x: Tensor) -> Any:
        tokens = x.shape[1]
        mask = self.causal_mask[:tokens, :tokens].to(x.device)

        def mixed(y: Tensor) -> Any:
            return self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]

        return x + mixed(x)


class NeverReads(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mask = mask

    def forward(self, x: Tensor) -> Any:
        return x + self.attn(x, x, x, need_weights=False)[0]


class SeesAll(nn.Module):
    """A mask that hides nothing, as where a block is of an encoder."""

    def __init__(self, seen_mask: Tensor) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.seen_mask = seen_mask

    def forward(self, x: Tensor) -> Any:
        return x + self.attn(x, x, x, need_weights=False)[0]


def made_with(kind: Any, mask: Tensor) -> Any:
    """What makes a block with a mask."""
    made = partial(kind, mask.clone())
    made.__name__ = kind.__name__  # type: ignore[attr-defined]
    return made


def _case(wrong: Any, right: Any, mask: Tensor = HIDDEN) -> Case:
    return Case("mask-read", made_with(wrong, HIDDEN), made_with(right, mask), of_module, has_line=False)


CASES = [
    _case(DropsWhatItMoved, Block),
    _case(DropsWhatItCut, KeepsWhatItCut),
    _case(NeverReads, SeesAll, torch.zeros(4, 4).bool()),
    Case(
        "mask-read", made_with(NeverReads, torch.zeros(4, 4).masked_fill(HIDDEN, -torch.inf)), Block, of_module, False
    ),
]
