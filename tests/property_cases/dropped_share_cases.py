"""Dropout of weights that is written by hand: what it keeps, and what that is divided by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class ByHand(nn.Module):
    """Attention to all tokens, of whose weights some are dropped in training."""

    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        self.qkv, self.p = nn.Linear(WIDTH, 3 * WIDTH), p

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return joined(self.dropped(weights) @ v)

    def dropped(self, weights: Tensor) -> Tensor:
        if not self.training:
            return weights
        return weights * (torch.rand_like(weights) >= self.p) / (1 - self.p)


class KeepsWhatIsToGo(ByHand):
    def dropped(self, weights: Tensor) -> Tensor:
        if not self.training:
            return weights
        return weights * (torch.rand_like(weights) < self.p).float()  # here


class DividesByNothing(ByHand):
    def dropped(self, weights: Tensor) -> Tensor:
        if self.training:
            gone = torch.rand(weights.shape) < self.p
            weights = weights.masked_fill(gone, 0.0)  # here
        return weights


class DividesByTheOtherShare(ByHand):
    def dropped(self, weights: Tensor) -> Tensor:
        if self.training:
            kept = torch.bernoulli(torch.full_like(weights, 1 - self.p))
            weights = weights * kept / self.p  # here
        return weights


class NormalizedOnceMore(ByHand):
    def dropped(self, weights: Tensor) -> Tensor:
        if not self.training:
            return weights
        weights = weights * (torch.rand_like(weights) >= self.p) + 1e-12
        return weights / weights.sum(-1, keepdim=True)


class LeftOut(ByHand):
    """Attention whose dropped weights are left out without rescaling."""

    dropped = DividesByNothing.dropped


class OfPyTorch(ByHand):
    def dropped(self, weights: Tensor) -> Tensor:
        return nn.functional.dropout(weights, self.p, self.training)


CASES = [
    *(Case("dropped-share", KeepsWhatIsToGo, right, of_module) for right in (ByHand, NormalizedOnceMore)),
    *(Case("dropped-share", DividesByNothing, right, of_module) for right in (ByHand, LeftOut, OfPyTorch)),
    Case("dropped-share", DividesByTheOtherShare, ByHand, of_module),
]
