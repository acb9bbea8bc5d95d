"""Keys that a query keeps by their scores: those with the largest, and as many as it was told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.properties.sums import query_numbers
from regard.check.target import Invocation
from regard.check.target.told_numbers import numbers_told

__all__ = ["chosen_key_findings"]

TOLD = re.compile(r"_*(?:num_?)?(?:top_?k|k_?top|n_?keep|keep(?:_?k)?)(?:_?(?:keys?|tokens?))?_*")
MIN_QUERIES = 8
"""Of fewer, the smallest scores may be kept by chance."""
_BY_KEYS = re.compile(r"(?:expert|key|token|column)s?[-_ ]choice|\b(?:each|every|per)[-_ ](?:key|column)\b", re.I)
"""In code in which keys choose their queries."""


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
    yield from _kept_of_each_key(invocation, evidence, kept, num_kept)
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


def _kept_of_each_key(invocation: Invocation, evidence: Evidence, kept: Tensor, num_kept: Tensor) -> Iterator[Finding]:
    """As many queries of each key as a query is to keep keys, where queries keep different numbers of these.

    As where the k-th largest score is searched along the axis of the queries. Code may say that keys choose.

    Args:
        invocation: the call.
        evidence: an attention which keys have a weight in depends on the tokens.
        kept: (scores): whether a key has a weight.
        num_kept: (queries): how many.
    """
    table, code = evidence.base, evidence.code
    told = {(name, value) for name, value in numbers_told(invocation) if TOLD.fullmatch(name)}
    if len({value for _, value in told}) != 1 or bool((num_kept == num_kept[0]).all()) or _BY_KEYS.search(code):
        return
    owners = torch.stack([table.key.sample, table.head, table.key.token], -1)
    of_key = torch.unique(owners, dim=0, return_inverse=True)[1]
    num_queries, num_keeping = of_key.bincount(), of_key[kept].bincount(minlength=int(of_key.max()) + 1)
    name, value = min(told)
    if bool((num_keeping == value).all()) and bool((num_queries > value).all()) and len(num_keeping) >= MIN_QUERIES:
        message = (
            f"with {name}={value} each key is kept by {value} queries, and a query keeps {int(num_kept.min())} to "
            f"{int(num_kept.max())} keys: the largest scores are searched along the queries, not along the keys"
        )
        yield Finding("violation", "largest-kept", "mask", message, table.instance.scores_location)
