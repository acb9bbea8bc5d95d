"""Keys that a query keeps by their scores: those with the largest, and as many as it was told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.properties.sums import query_numbers
from regard.check.target import Invocation
from regard.check.target.told_numbers import numbers_told

__all__ = ["chosen_key_findings"]

TOLD = re.compile(r"_*(?:num_?)?(?:top_?k|k_?top|n_?keep|keep(?:_?k)?)(?:_?(?:keys?|tokens?))?_*")
MIN_QUERIES = 8
"""Of fewer, the smallest scores may be kept by chance."""


def chosen_key_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether a mask that hangs on the scores keeps the smallest ones, all from the k-th smallest on, or k - 1.

    Args:
        invocation: the call.
        evidence: an attention which keys have a weight in depends on the tokens.
    """
    table, rows = evidence.base, query_numbers(evidence)
    count = int(rows.max()) + 1
    kept = table.weight.abs() > ZERO_WEIGHT
    num_keys, num_kept = rows.bincount(minlength=count), rows[kept].bincount(minlength=count)
    keys, number = int(num_keys[0]), int(num_kept[0])
    if count < MIN_QUERIES or bool((num_keys != keys).any()) or bool((num_kept != number).any()) or number == keys:
        return
    line = table.instance.scores_location
    lowest, highest = (torch.full((count,), end, dtype=torch.float64) for end in (torch.inf, -torch.inf))
    best = highest.scatter_reduce(0, rows[kept], table.product[kept], "amax")
    worst_removed = lowest.scatter_reduce(0, rows[~kept], table.product[~kept], "amin")
    worst_kept = lowest.scatter_reduce(0, rows[kept], table.product[kept], "amin")
    best_removed = highest.scatter_reduce(0, rows[~kept], table.product[~kept], "amax")
    if bool((best < worst_removed).all()):
        message = f"each query keeps the {number} keys of {keys} that have its smallest scores"
        yield Finding("violation", "largest-kept", "mask", message, line)
        return
    told = {(name, value) for name, value in numbers_told(invocation) if TOLD.fullmatch(name)}
    if len({value for _, value in told}) == 1:
        name, value = min(told)
        if number != value < keys and number == keys - value + 1:
            message = f"with {name}={value} each query keeps {number} keys of {keys}: all but the {value - 1} smallest "
            message += f"scores, not the {value} largest"
            yield Finding("violation", "largest-kept", "mask", message, line)
        elif 1 <= number == value - 1 < keys - 1 and bool((worst_kept > best_removed).all()):
            message = f"with {name}={value} each query keeps the {number} keys that have its largest scores: the one "
            message += "with the last of the largest is removed as well"
            yield Finding("violation", "largest-kept", "mask", message, line)
