"""Sums of the weights of an attention: over the keys of a query, and over what else there is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence

__all__ = ["groupings", "other_sums", "query_numbers", "sums_by"]


def query_numbers(evidence: Evidence) -> Tensor:
    """(scores): the same number for the scores of one query in one head."""
    table = evidence.base
    if table.of_no_token and bool((table.group >= 0).all()):  # the same queries may read several parts of a sample
        return _numbered(table.group[:, None])
    return _numbered(torch.stack([table.query.sample, table.query.token, table.head], -1))


def groupings(evidence: Evidence) -> Iterator[tuple[str, Tensor]]:
    """What a softmax may run over instead of the keys, and (scores): the number of the group that each is in."""
    table = evidence.base
    yield "the queries", _numbered(torch.stack([table.key.sample, table.key.token, table.head], -1))
    both = torch.stack([table.query.sample, table.query.token, table.key.sample, table.key.token], -1)
    yield "the heads", _numbered(both)
    yield "the samples", _numbered(torch.stack([table.query.token, table.key.token, table.head], -1))


def _at_once(evidence: Evidence) -> Iterator[tuple[str, Tensor]]:
    """What all scores are divided by that are summed without an axis: those of one head, of one sample, or all.

    That a maximum or a mean is taken of all of them at once says nothing, so that these are no `groupings`.
    """
    table = evidence.base
    yield "all queries and keys of a head", _numbered(torch.stack([table.query.sample, table.head], -1))
    yield "all queries and keys of a sample, in all heads", _numbered(table.query.sample[:, None])
    yield "all queries and keys, of all samples", torch.zeros_like(table.head)


def sums_by(numbers: Tensor, weight: Tensor) -> Tensor:
    """(groups): the sum of the weights of each."""
    return torch.zeros(int(numbers.max()) + 1, dtype=torch.float64).index_add_(0, numbers, weight)


def other_sums(evidence: Evidence, tolerance: float) -> str:
    """What the weights sum to 1 over, other than the keys of a query; empty where it is nothing."""
    for name, numbers in (*groupings(evidence), *_at_once(evidence)):
        sums = sums_by(numbers, evidence.base.weight)
        if int(numbers.bincount().max()) > 1 and bool(((sums - 1).abs() <= tolerance).all()):
            return name
    return ""


def _numbered(rows: Tensor) -> Tensor:
    """The same number for equal rows."""
    numbers: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return numbers
