"""Scores that fall with the distance of a query and a key."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.sums import query_numbers, sums_by

__all__ = ["distance_scores"]

SAME = 1e-8
"""Of the largest score: how far one may be from a number times the squared distance."""


def distance_scores(evidence: Evidence) -> Finding | None:
    """Scores that are -|q - k|^2 times one number, and what is the same for all keys of a query; None of others.

    Kim, Papamakarios and Mnih 2021, "The Lipschitz Constant of Self-Attention", section 4.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    table = evidence.base
    live = table.masked.isfinite()
    if not bool(live.any()) or table.q.shape != table.k.shape:
        return None
    numbers = query_numbers(evidence)[live]
    scores = _less_their_mean(table.masked[live].double(), numbers)
    distances = _less_their_mean((table.q - table.k).square().sum(-1)[live].double(), numbers)
    slope = float((scores * distances).sum() / (distances * distances).sum().clamp(min=1e-30))
    largest = float(scores.abs().max())
    if slope >= 0 or largest == 0 or float((scores - slope * distances).abs().max()) > SAME * largest:
        return None
    message = f"scores are -{-slope:.4g} times the squared distance of query and key (L2 attention)"
    return Finding("design", "distance-scores", "scores", message, table.instance.scores_location)


def _less_their_mean(numbers: Tensor, queries: Tensor) -> Tensor:
    """Numbers of the scores, less their mean over the keys of the query."""
    counts = sums_by(queries, torch.ones_like(numbers)).clamp(min=1)
    return numbers - (sums_by(queries, numbers) / counts)[queries]
