"""Causal linear attention: sums of keys times values that run over the tokens, divided by the sum of the keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from property_cases import WIDTH, Case, joined, of_module, split


class Divided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        q, k = self.features(q), self.features(k)
        sums = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)  # here
        read = torch.einsum("bhnd,bhnde->bhne", q, sums)
        return self.out(joined(self.divided(read, q, k)))

    def features(self, x: Tensor) -> Tensor:
        return elu(x) + 1

    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return read / (q * k.cumsum(2)).sum(-1, keepdim=True)


class NotDivided(Divided):
    """It is said nowhere that it should be."""

    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return read


class DivisorMadeAndLeft(Divided):
    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        k.cumsum(2)  # here
        return read


class DivisorOfQueriesLeft(Divided):
    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        sums = k.cumsum(2)  # here
        (q * sums).sum(-1, keepdim=True)
        return read


class DividedByOtherHeads(Divided):
    """The keys are summed over the heads, not over the tokens."""

    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return read / (q * k.cumsum(1)).sum(-1, keepdim=True)  # here


class Multiplied(Divided):
    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return read * (q * k.cumsum(2)).sum(-1, keepdim=True)  # here


class MultipliedByTheInverse(Divided):
    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return read * (q * k.cumsum(2)).sum(-1, keepdim=True).reciprocal()


class GatedByTheSum(Divided):
    """What is read is divided by its length, and more of it passes where there was more to read."""

    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return read * (q * k.cumsum(2)).sum(-1, keepdim=True).sigmoid()


class DividedByABound(Divided):
    """As in mLSTM: never by less than 1."""

    def divided(self, read: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return read / (q * k.cumsum(2)).sum(-1, keepdim=True).abs().clamp(min=1.0)


class OfBothSigns(Divided):
    def features(self, x: Tensor) -> Tensor:
        return elu(x)


class SummedOverHeads(Divided):
    """The axis of the heads, which stands where that of the tokens was before they were split."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        q, k = self.features(q), self.features(k)
        sums = (k[..., None] * v[..., None, :]).cumsum(1)  # here
        read = torch.einsum("bhnd,bhnde->bhne", q, sums)
        return self.out(joined(read / (q * k.cumsum(1)).sum(-1, keepdim=True)))


class SummedBeforeTheSplit(Divided):
    """The tokens are the second axis: heads come after them."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)) for each in self.qkv(x).chunk(3, -1))
        q, k = self.features(q), self.features(k)
        sums = (k[..., None] * v[..., None, :]).cumsum(1)
        read = torch.einsum("bnhd,bnhde->bnhe", q, sums)
        return self.out((read / (q * k.cumsum(1)).sum(-1, keepdim=True)).flatten(2))


CASES = [
    Case("running-sums-of-tokens", SummedOverHeads, Divided, of_module),
    Case("running-sums-of-tokens", SummedOverHeads, NotDivided, of_module),
    Case("running-sums-of-tokens", SummedOverHeads, SummedBeforeTheSplit, of_module),
    Case("weights-sum-to-one", DivisorMadeAndLeft, Divided, of_module),
    Case("weights-sum-to-one", DivisorMadeAndLeft, NotDivided, of_module),
    Case("weights-sum-to-one", DivisorOfQueriesLeft, Divided, of_module),
    Case("weights-sum-to-one", DividedByOtherHeads, Divided, of_module),
    Case("weights-sum-to-one", DividedByOtherHeads, DividedByABound, of_module),
    Case("weights-sum-to-one", Multiplied, MultipliedByTheInverse, of_module),
    Case("weights-sum-to-one", Multiplied, GatedByTheSum, of_module),
    Case("weights-not-negative", OfBothSigns, Divided, of_module),
]
