"""Masks beside which everything is NaN: in float16, and where the first rows have no key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_x, split
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


class OfAnyPrecision(nn.Module):
    """Attention. It runs in float32, in float16 and in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def lowest(self, x: Tensor) -> float:
        return torch.finfo(x.dtype).min

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / (WIDTH // HEADS) ** 0.5
        if mask is not None:
            scores = scores + (1 - mask[:, None, None].to(x)) * torch.tensor(self.lowest(x)).to(x)
        return joined(scores.softmax(-1) @ v)


class OfFloat32(OfAnyPrecision):
    """Attention."""

    def lowest(self, x: Tensor) -> float:
        return -1e9


class TooLowForFloat16(OfFloat32):
    """Attention. It runs in float32, in float16 and in bfloat16."""


class FilledTooLow(TooLowForFloat16):
    """Attention. It runs in half precision as well, as after half()."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / (WIDTH // HEADS) ** 0.5
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        if mask is not None:
            hidden = hidden | ~mask.bool()[:, None, None]
        return joined(scores.masked_fill(hidden, self.lowest(x)).softmax(-1) @ v)


class LeftPadded(nn.Module):
    """Two causal layers, for batches that are padded on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return self.of(scores, allowed).nan_to_num()

    def of(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        allowed = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        if mask is not None:
            allowed = allowed & mask.bool()[:, None, None]
        for each in self.layers:
            q, k, v = map(split, each(x).chunk(3, -1))
            x = x + joined(self.weights(q @ k.mT / (WIDTH // HEADS) ** 0.5, allowed) @ v)
        return x


class EmptyRowsSpread(LeftPadded):
    """Two causal layers, for batches that are padded on the left."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return self.of(scores, allowed)


class RightPadded(EmptyRowsSpread):
    """Two causal layers, for batches that are padded on the right."""


def with_mask(kind: Any) -> Invocation:
    """A call of a module that may be given a mask."""
    module = kind()
    prepare(module, 1)
    return of_x(module, masks=("mask",))


CASES = [
    Case("finite-in-low-precision", TooLowForFloat16, OfAnyPrecision, with_mask, has_line=False),
    Case("finite-in-low-precision", FilledTooLow, OfFloat32, with_mask, has_line=False),
    Case("weights-are-numbers", EmptyRowsSpread, LeftPadded, with_mask, has_line=False, attentions=2),
    Case("weights-are-numbers", EmptyRowsSpread, RightPadded, with_mask, has_line=False, attentions=2),
]
