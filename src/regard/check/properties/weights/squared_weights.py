"""Weights that are squared for variances: the variance of a weighted sum of independent numbers, beside its mean."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.table import AttentionTable

__all__ = ["squared_weights"]

SQUARED = "weights-squared"
SAME = 1e-8


def squared_weights(evidence: Evidence) -> Finding | None:
    """The squares of the softmax where values are variances, and others are weighted by the softmax itself; else None.

    The variance of a sum of w v is the sum of w^2 var(v), where the v are independent. Fan et al. 2022, "Sequential
    Recommendation via Stochastic Self-Attention", section 3.3. Where nothing else is read by the weights as they are,
    or a value is negative, it is no variance.

    Args:
        evidence: of one of the attentions of a call.
    """
    several = [_are_squared(each) for each in (evidence.base, evidence.fresh)]
    if any(each is None or not bool(each.any()) for each in several):
        return None
    base = evidence.base
    if all(bool(each.all()) for each in several if each is not None) and not _is_softmax_read(base):
        return None
    message = "values, none of them negative, are weighted by the squares of the softmax, as the variances of a sum are"
    return Finding("design", SQUARED, "weights", message, base.instance.sums_location)


def _are_squared(table: AttentionTable) -> Tensor | None:
    """(sums): whether a weighted sum takes squares; None where one takes neither these nor the softmax as it is."""
    values = table.values
    known = values.score >= 0
    softmax = table.softmax[values.score.clamp(min=0)]
    plain, square = ((((values.weight - each).abs() <= SAME) | ~known).all(-1) for each in (softmax, softmax.square()))
    square &= ((values.value >= 0) | ~known).all(-1) & ~plain
    return square if bool((plain | square).all()) else None


def _is_softmax_read(table: AttentionTable) -> bool:
    """Whether another weighted sum takes the results of the softmax as they are."""
    instance, trace = table.instance, table.instance.run.trace
    originals, own = trace.originals(), {each.operation.index for each in instance.sums}
    results = {each.outputs[0].storage: each.outputs[0].data for each in instance.softmaxes}
    for product in instance.run.bilinear:
        for place in product.places if product.operation.index not in own else ():
            taken = trace.taken(place)
            made = results.get(originals.get(taken.storage, taken.storage))
            if made is not None and torch.equal(taken.data.flatten().sort().values, made.flatten().sort().values):
                return True
    return False
