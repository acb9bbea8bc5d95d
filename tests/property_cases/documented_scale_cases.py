"""Scales and caps of scores that are said, and those that are not applied."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module, split


def scaled_all_the_same(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with *unscaled* scores: the scale is in the weights of the queries."""
    return F.scaled_dot_product_attention(q, k, v)  # here


def not_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with *unscaled* scores: the scale is in the weights of the queries."""
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


def scaled_where_others_are_not(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Unlike attention with unscaled scores, it is divided by the root of the width."""
    return F.scaled_dot_product_attention(q, k, v)


class Capped(nn.Module):
    """Attention whose scores a cap holds."""

    def __init__(self, softcap: float = 4.0, *, in_full: bool = True) -> None:
        super().__init__()
        self.qkv, self.softcap, self.in_full = nn.Linear(WIDTH, 3 * WIDTH), softcap, in_full

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5  # here
        scores = self.held(scores) if self.in_full else scores
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def held(self, scores: Tensor) -> Tensor:
        return self.softcap * torch.tanh(scores / self.softcap)


class CappedInHalfPrecision(Capped):
    def held(self, scores: Tensor) -> Tensor:
        return super().held(scores) if scores.dtype == torch.float16 else scores


class WithoutACap(Capped):
    def __init__(self) -> None:
        super().__init__(softcap=0.0, in_full=False)


class CapTurnedOff(Capped):
    def __init__(self) -> None:
        super().__init__(in_full=False)
        self.use_softcap = False


class DividesByTau(nn.Module):
    """A learned temperature: the larger tau, the flatter the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.log_tau = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return (self.scaled(q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)  # here

    def scaled(self, scores: Tensor) -> Tensor:
        return scores / self.log_tau.exp()


class TimesTau(DividesByTau):
    """A learned temperature: the larger tau, the flatter the weights."""

    def scaled(self, scores: Tensor) -> Tensor:
        return scores * self.log_tau.exp()


class TimesATemperature(TimesTau):
    """Scores are times a learned temperature (XCiT)."""


class SharperByTau(TimesTau):
    """A larger tau makes the weights sharper."""


CASES = [
    *(
        Case("temperature-as-documented", TimesTau, r, of_module)
        for r in (DividesByTau, TimesATemperature, SharperByTau)
    ),
    *(Case("scale-as-documented", scaled_all_the_same, r) for r in (not_scaled, scaled_where_others_are_not)),
    *(
        Case("softcap-applied", CappedInHalfPrecision, right, of_module)
        for right in (Capped, WithoutACap, CapTurnedOff)
    ),
]
