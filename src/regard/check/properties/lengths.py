"""Lengths of queries and keys, compared with those of what they were made of."""

from __future__ import annotations

from torch import Tensor

__all__ = ["length_ratios"]


def length_ratios(change: Tensor, source: Tensor) -> Tensor:
    """How much longer changes are than those that they were made of; none where those are not known.

    Without those of tokens that were drawn twice: they changed nothing.
    """
    if bool(source.isnan().any()) or change.shape != source.shape:
        return change.new_zeros(0)
    lengths = source.norm(dim=-1)
    moved = lengths > 1e-12
    ratios: Tensor = change.norm(dim=-1)[moved] / lengths[moved]
    return ratios
