"""Correlations, of numbers and of ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def correlation(one: Tensor, other: Tensor, *, rank: bool = False) -> float:
    """Pearson's correlation of two tensors of one shape, or Spearman's; pairs with NaN do not count.

    Args:
        one: any numbers.
        other: as many.
        rank: Spearman's: the correlation of the ranks, where equal numbers share the mean of their ranks.

    Returns:
        From -1 to 1; NaN for fewer than two pairs, or where one of them is the same everywhere.
    """
    both = ~(one.isnan() | other.isnan())
    x, y = (t[both].double() for t in (one, other))
    if rank:
        x, y = ranks(x), ranks(y)
    if len(x) < 2:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    lengths = float(x.norm() * y.norm())
    return math.nan if lengths == 0.0 else max(-1.0, min(1.0, float(x @ y) / lengths))


def ranks(t: Tensor) -> Tensor:
    """The rank of each number, from 0; equal numbers share the mean of their ranks."""
    values, which, counts = torch.unique(t, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double() - 1
    return (last - (counts.double() - 1) / 2)[which] if len(values) else t.double()
