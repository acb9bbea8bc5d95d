"""A second softmax, of each key alone, whose weights are added to those of the pairs (disentangled non-local)."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.sums import groupings, query_numbers, sums_by
from regard.check.roles.instances import SOFTMAXES

__all__ = ["unary_weights"]

TOLERANCE = 1e-6


def unary_weights(evidence: Evidence) -> Finding | None:
    """That what is added to the weights is the same for all queries, and a softmax over the keys; None of all else.

    Yin et al. 2020, "Disentangled Non-Local Neural Networks" (arXiv:2006.06668, equation 6).

    Args:
        evidence: of the attention, whose weights are other than its softmax.
    """
    table = evidence.base
    added = table.weight - table.softmax
    of_keys = next(groupings(evidence))[1]
    count = int(of_keys.max()) + 1
    most = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce(0, of_keys, added, "amax")
    least = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce(0, of_keys, added, "amin")
    if bool((added <= 0).any()) or float((most - least).max()) > TOLERANCE:
        return None
    if bool(((sums_by(query_numbers(evidence), added) - 1).abs() > TOLERANCE).any()):
        return None
    trace = table.instance.run.trace
    if sum(each.name in SOFTMAXES for each in trace) <= len(table.instance.softmaxes):
        return None
    message = "weights of each key alone are added to those of the pairs, both by a softmax (disentangled non-local)"
    return Finding("design", "unary-weights", "weights", message, table.instance.sums_location)
