"""The scores that a mask is judged by: those whose query is a token, and has keys to choose among."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.check.properties.finding import Evidence
from regard.check.properties.masks.outcome_findings import are_of_one_sequence
from regard.check.properties.saturation import BLOCKED, ZERO_WEIGHT
from regard.check.properties.sums import query_numbers
from regard.check.properties.weights.softmax import SUM_TOLERANCE
from regard.check.target import Invocation

__all__ = ["has_a_key", "has_a_zero", "of_real_queries", "without_any_key"]


def has_a_key(evidence: Evidence, allowed: Tensor) -> Tensor:
    """(scores): whether the query has a key that it may attend to: of others every code makes its own."""
    rows = query_numbers(evidence)
    count = torch.zeros(int(rows.max()) + 1, dtype=torch.long).index_add_(0, rows, allowed.long())
    return count[rows] > 0


def has_a_zero(evidence: Evidence, free: Tensor) -> Tensor:
    """(scores): whether its query has weights that are 0 by their scores alone, whatever hides their keys."""
    rows = query_numbers(evidence)
    is_zero = (free.abs() <= ZERO_WEIGHT) & (evidence.base.masked > BLOCKED)
    return torch.isin(rows, rows[is_zero])


def of_real_queries(evidence: Evidence, whole: Tensor, shape: str) -> Tensor:
    """(scores): whether its query is a token that the mask does not hide as a key."""
    table = evidence.base
    if "q" in shape or not are_of_one_sequence(table) or not evidence.num_tokens:
        return torch.ones(len(table.weight), dtype=torch.bool)
    real = pad(whole, (0, max(0, whole.shape[-2] - whole.shape[-1])))  # a token that no query sees is not judged
    return real[table.query.sample.clamp(min=0), table.head, 0, table.query.token]


def without_any_key(invocation: Invocation, evidence: Evidence, name: str, free: Tensor) -> Tensor:
    """(scores): whether another mask hides all keys of its query, so that each has the same weight."""
    others = [invocation.arguments.get(each) for each in invocation.masks if each != name]
    if not any(isinstance(each, Tensor) and bool((each != each.flatten()[0]).any()) for each in others):
        return torch.zeros(len(free), dtype=torch.bool)
    rows = query_numbers(evidence)
    mean = torch.zeros(int(rows.max()) + 1, dtype=free.dtype).index_add_(0, rows, free) / rows.bincount()
    is_other = ((free - mean[rows]).abs() > SUM_TOLERANCE).long()
    return torch.zeros(len(mean), dtype=torch.long).index_add_(0, rows, is_other)[rows] == 0
