"""A softmax so steep that weights are zero by the scores alone: by no mask, and by no choice of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence
from regard.check.roles.table import AttentionTable

__all__ = ["BLOCKED", "ZERO_WEIGHT", "is_saturated", "weights_without_steepness"]

ZERO_WEIGHT = 1e-30
BLOCKED = -5e3
"""Scores from here down were put there in order to block, as where -9999 or -10000 was added to them."""


def is_saturated(evidence: Evidence) -> bool:
    """Whether other weights are zero in one run than in another, and none of their scores was put so low on purpose."""
    base, fresh = evidence.base, evidence.fresh
    if len(base.weight) != len(fresh.weight):
        return False
    zero = [each.weight.abs() <= ZERO_WEIGHT for each in (base, fresh)]
    if bool((zero[0] == zero[1]).all()):
        return False
    always = zero[0] & zero[1]  # as what a mask hides
    scores = [each.masked[of_zero & ~always] for each, of_zero in zip((base, fresh), zero, strict=True)]
    return all(bool((each > BLOCKED).all()) for each in scores)  # where no softmax takes them, none is known


def weights_without_steepness(table: AttentionTable) -> Tensor:
    """(scores): the weights, none of them zero where the softmax took q . k as it is, and no mask stood between.

    Without a scale a key may have next to no weight in every run, as where a token's product with itself is large.
    """
    is_as_it_is = (table.masked == table.product) & (table.weight != 0)
    return torch.where(is_as_it_is & (table.weight.abs() <= ZERO_WEIGHT), 2 * ZERO_WEIGHT, table.weight)
