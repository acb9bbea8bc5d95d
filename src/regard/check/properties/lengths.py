"""Lengths of queries and keys, compared with those of what they were made of."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence

__all__ = ["are_keys_shortened_alike", "length_ratios"]

SAME = 1e-6
"""Of the largest; a smaller difference is rounding."""


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


def are_keys_shortened_alike(evidence: Evidence) -> bool:
    """Whether each position lengthens a pair of channels of its query as much as it shortens that of its key: xPos.

    The score of two tokens then still depends on their distance (Sun et al. 2023, "A Length-Extrapolatable
    Transformer", section 3.2), whatever each of them is times.
    """
    base, fresh = evidence.base, evidence.fresh
    same = base.query.token == base.key.token
    for is_interleaved in (True, False):
        grown = base.q.new_ones(())
        for new, old, source, before in (
            (fresh.q, base.q, fresh.q_source, base.q_source),
            (fresh.k, base.k, fresh.k_source, base.k_source),
        ):
            change, made_of = (new - old)[same], (source - before)[same]
            if bool(made_of.isnan().any()) or change.shape != made_of.shape or change.shape[-1] % 2:
                return False
            lengths = [
                each.reshape(len(each), *((-1, 2) if is_interleaved else (2, -1))).norm(dim=2 if is_interleaved else 1)
                for each in (change, made_of)
            ]
            grown = grown * lengths[0] / lengths[1]
        if not len(grown) or not bool(grown.isfinite().all()):
            return False
        by_head = [grown[base.head[same] == head] for head in range(base.num_heads)]
        if all(bool(((each - each[:1]).abs() <= SAME * torch.amax(each)).all()) for each in by_head if len(each)):
            return True
    return False
