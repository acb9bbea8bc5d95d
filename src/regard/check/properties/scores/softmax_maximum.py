"""What is subtracted from scores against overflow: the same number for all keys of a query, or it does not cancel."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.sums import groupings, query_numbers

__all__ = ["subtracted_maximum"]

MIN_WEIGHT = 1e-9
EXACT = 1e-6
"""The largest residual of scores less the maximum of others, relative to the largest of them."""


def subtracted_maximum(evidence: Evidence) -> Finding | None:
    """What is found of weights whose logarithms are scores less the largest score of something else than their query.

    Args:
        evidence: of weights that sum to 1, and that are no exponentials of q . k times one number.
    """
    table, rows = evidence.base, query_numbers(evidence)
    live = table.weight > MIN_WEIGHT
    logs = _centered(table.weight.clamp(min=MIN_WEIGHT).log(), rows, live)[live]
    everything = torch.ones_like(live)
    for name, groups in groupings(evidence):
        if int(groups.bincount().max()) < 2:
            continue
        for taken in (everything, live):  # where a mask stands before the maximum, and behind it
            largest = torch.full((int(groups.max()) + 1,), -torch.inf, dtype=torch.float64).scatter_reduce(
                0, groups[taken], table.product[taken], "amax"
            )
            left = _centered(table.product - largest[groups], rows, live)[live]
            scale = float(logs @ left) / max(float(left @ left), 1e-300)
            if scale > 0 and float((logs - scale * left).abs().max()) < EXACT * float(logs.abs().max()):
                message = (
                    f"what is subtracted from a score before the exponential is the largest over {name}, not over the "
                    "keys: it differs from key to key, so that it does not cancel"
                )
                return Finding("violation", "softmax-maximum", "weights", message, _line(evidence))
    return None


def _line(evidence: Evidence) -> CodeLocation | None:
    instance = evidence.base.instance
    return instance.sums_location or instance.scores_location


def _centered(numbers: Tensor, rows: Tensor, live: Tensor) -> Tensor:
    """Numbers less their mean over the live scores of the same query."""
    size = int(rows.max()) + 1
    total = torch.zeros(size, dtype=torch.float64).index_add_(0, rows[live], numbers[live])
    centered: Tensor = numbers - (total / rows[live].bincount(minlength=size).clamp(min=1))[rows]
    return centered
