"""Scores that fall with the distance of a query and a key."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED
from regard.check.properties.sums import query_numbers, sums_by

__all__ = ["decayed_scores", "distance_scores"]

SAME = 1e-8
"""Of the largest score: how far one may be from these two parts."""


def distance_scores(evidence: Evidence) -> Finding | None:
    """Scores that are -|q - k|^2 times one number, but for what is the same for all keys of a query; None of others.

    Of |q - k|^2 = q . q + k . k - 2 q . k the first part is such; queries may be multiplied by 2 before they are here.

    Kim, Papamakarios and Mnih 2021, "The Lipschitz Constant of Self-Attention", section 4.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    table = evidence.base
    live = table.masked.isfinite()
    if not bool(live.any()) or table.q.shape != table.k.shape:
        return None
    numbers = query_numbers(evidence)[live]
    scores, products, lengths = (
        _less_their_mean(each[live].double(), numbers)
        for each in (table.masked, (table.q * table.k).sum(-1), table.k.square().sum(-1))
    )
    parts = torch.stack([products, lengths], -1)
    by_product, by_length = torch.linalg.lstsq(parts, scores[:, None]).solution.flatten().tolist()
    largest = float(scores.abs().max())
    error = float((scores - by_product * products - by_length * lengths).abs().max())
    if not (by_length < 0 < by_product and error <= SAME * largest):
        return None
    message = "scores fall with the squared distance of query and key (L2 attention)"
    return Finding("design", "distance-scores", "scores", message, table.instance.scores_location)


def decayed_scores(evidence: Evidence) -> Finding | None:
    """Scores that are q . k times a number, which is the same for the keys at the queries' places, and less elsewhere.

    By which it is less may depend on the tokens. Ghosh, Heffernan and Lan 2020, "Context-Aware Attentive Knowledge
    Tracing", equation 2. None of others, as of scores that are times a mask of 0 and 1.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    for table in (evidence.base, evidence.fresh):
        live = (table.masked > BLOCKED) & (table.product.abs() > SAME)
        factor, is_own = (table.masked / table.product)[live], (table.query.token == table.key.token)[live]
        if not bool(is_own.any()) or not bool((factor > 0).all()):
            return None
        largest = float(factor.max())
        is_same = float(largest - factor[is_own].min()) <= SAME * largest
        if not is_same or not bool((factor[~is_own] < (1 - SAME) * largest).any()):
            return None
    message = "scores are times a number that falls from 1 away from the query's own place (monotonic attention)"
    return Finding("design", "decayed-scores", "scores", message, evidence.base.instance.scores_location)


def _less_their_mean(numbers: Tensor, queries: Tensor) -> Tensor:
    """Numbers of the scores, less their mean over the keys of the query."""
    counts = sums_by(queries, torch.ones_like(numbers)).clamp(min=1)
    return numbers - (sums_by(queries, numbers) / counts)[queries]
