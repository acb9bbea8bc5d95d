"""Scores that an operation blocked, or wrote over, and whose keys have a weight all the same."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED, ZERO_WEIGHT
from regard.check.properties.sums import query_numbers

__all__ = ["replaced", "unblocked"]

NOTICEABLE = 1e-3
"""Of the largest weight of a query: a smaller one was meant to be none."""
SAME = 1e-9
_MADE_LIKE = re.compile(r"\w+_like$|new_")
"""Operations that take nothing of a tensor but its shape and type: what stands there blocks no score yet."""


def unblocked(evidence: Evidence) -> Finding | None:
    """A key that some operation blocked for a query, and that has a weight all the same."""
    table = evidence.base
    run = table.instance.run
    last = max((each.operation.index for each in table.instance.scores), default=len(run.trace))
    row_of = table.rows_of_tags()
    queries = query_numbers(evidence)
    lowest = torch.full((int(queries.max()) + 1,), -torch.inf, dtype=torch.float64)
    # A query whose keys are all blocked before the softmax has to read one of them, as a token that sees no other does.
    with_a_key = lowest.scatter_reduce(0, queries, table.masked, "amax") > BLOCKED
    for operation in run.trace.operations[last + 1 :]:
        if _MADE_LIKE.match(operation.name):
            continue
        for record, tags in zip(operation.outputs[:1], run.tags.outputs[operation.index], strict=False):
            if not record.data.is_floating_point() or not bool((record.data <= BLOCKED).any()):
                continue
            rows = row_of[tags]
            scores = torch.full((len(table.weight),), torch.nan, dtype=torch.float64)
            scores[rows[rows >= 0]] = record.data[rows >= 0].double()
            # Where a large number is added to all of them, or all are written later, none is blocked.
            largest = lowest.scatter_reduce(0, queries, scores.nan_to_num(-torch.inf, neginf=-torch.inf), "amax")
            # Beside -1e38 the distance is lost in rounding.
            lowered = (scores <= largest[queries] + BLOCKED / 2) & (scores < largest[queries])
            blocked = (scores <= BLOCKED) & lowered & with_a_key[queries]
            seen = blocked & (table.weight > ZERO_WEIGHT) & ~_are_multiplied(scores, table.masked, queries)
            if bool(seen.any()):
                at = int(seen.nonzero()[0])
                key, query, weight = table.key.token[at], table.query.token[at], float(table.weight[at])
                message = (
                    f"{int(seen.sum())} of {int(blocked.sum())} blocked scores have a weight all the same: "
                    f"key {int(key)} has {weight:.4g} of query {int(query)}"
                )
                return Finding("violation", "blocked-scores", "mask", message, operation.location)
    return None


def _are_multiplied(scores: Tensor, masked: Tensor, queries: Tensor) -> Tensor:
    """(scores): whether what the softmax takes of a query is one number below 1 times its scores: none was blocked.

    As 100 times the distances of tokens, which a small number is multiplied by later.

    Args:
        scores: (scores): at some operation.
        masked: (scores): what the softmax takes.
        queries: (scores): the query of each.
    """
    known = scores.abs() > SAME  # not that of a token with itself, which is 0
    factors, start = (masked / scores)[known], torch.full((int(queries.max()) + 1,), torch.nan, dtype=torch.float64)
    least, most = (
        start.scatter_reduce(0, queries[known], factors, how, include_self=False) for how in ("amin", "amax")
    )
    return ((most - least <= SAME * most.abs()) & (most < 1))[queries]


def replaced(evidence: Evidence) -> Finding | None:
    """Scores in whose place the same number stands whatever the tokens are, one that leaves them a weight."""
    base, fresh, rows = evidence.base, evidence.fresh, query_numbers(evidence)
    if len(base.weight) != len(fresh.weight) or not bool(base.masked.isfinite().any()):
        return None
    same = (base.masked == fresh.masked) & base.masked.isfinite() & (base.product != fresh.product)
    numbers = torch.unique(base.masked[same])
    if len(numbers) != 1 or any(not torch.equal(same, each.masked == numbers) for each in (base, fresh)):
        return None  # as where scores are clamped
    if all(float(each.masked.max()) == float(numbers) == 0.0 for each in (base, fresh)):
        return None  # the largest of all scores is subtracted, and is of the same two tokens by chance
    top = torch.full((int(rows.max()) + 1,), -torch.inf, dtype=torch.float64)
    if bool((top.scatter_reduce(0, rows, base.masked, "amax") == numbers).all()):
        return None  # the maximum of each query's scores is subtracted
    largest = torch.zeros(int(rows.max()) + 1, dtype=torch.float64).scatter_reduce(
        0, rows[~same], base.weight[~same], "amax"
    )
    seen = same & (largest[rows] > 0) & (base.weight > NOTICEABLE * largest[rows])
    if not bool(seen.any()):
        return None
    at = int(seen.nonzero()[0])
    message = (
        f"{int(same.sum())} of {len(same)} scores are {float(numbers):.4g} whatever the tokens are, and have a weight: "
        f"key {int(base.key.token[at])} has {float(base.weight[at]):.4g} of query {int(base.query.token[at])}"
    )
    return Finding("violation", "blocked-scores", "mask", message, base.instance.scores_location)
