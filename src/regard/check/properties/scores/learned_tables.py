"""Learned tables of biases: whether their entries are read in the order that the documentation says, and by head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.documentation import documentation_of, index_direction
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.bias import added_to_scores
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in

__all__ = ["documented_table_findings", "table_head_findings"]

SAME = 1e-9


def documented_table_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A table whose entries are added for keys on the other side of the query than its documentation says.

    Where nothing says it, either order is right: the entries are learned.

    Args:
        invocation: the call.
        evidence: of an attention to whose scores a bias by positions is added.
    """
    wanted = index_direction(documentation_of(invocation.target))
    if not wanted:
        return
    tables = _parameters(invocation)
    for added, _, line in added_to_scores(evidence):
        bias = evidence.base.dense(added)[0, 0]
        if bias.shape[-2] != bias.shape[-1] or bias.shape[-1] < 2:
            continue
        before, after = bias.diagonal(-1), bias.diagonal(1)
        if any(not bool(((each - each[0]).abs() < SAME).all()) for each in (before, after)):
            continue
        for table in tables:
            places = [((table - each[0]).abs() < SAME).nonzero() for each in (before, after)]
            if any(len(each) != 1 for each in places):
                continue
            first, second = (each[0] for each in places)
            steps = (second - first)[second != first]
            if len(steps) == 1 and int(steps.sign()) != wanted:
                at, other = (int(each[second != first]) for each in (first, second))
                message = (
                    f"a key before the query takes entry {at} of the table, one after it entry {other}: by the "
                    "documentation it is the other way round"
                )
                yield Finding("violation", "table-as-documented", "bias", message, line)
                return


def table_head_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A table with a row or a column for each head, of which one head takes the entries of others.

    As where a table (entries, heads) is viewed as (heads, queries, keys) without a permutation of the axes.

    Args:
        invocation: the call.
        evidence: of an attention to whose scores a bias by positions is added.
    """
    heads = evidence.base.num_heads
    if heads < 2:
        return
    for added, _, line in added_to_scores(evidence):
        bias = evidence.base.dense(added)[0]
        if bool(bias.isnan().any()) or bool((bias == bias[:1]).all()):
            continue
        for table in _parameters(invocation):
            axes = [axis for axis, size in enumerate(table.shape) if size == heads]
            places = _places(bias, table) if table.ndim == 2 and len(axes) == 1 else None
            if places is None:
                continue
            taken = places[..., axes[0]].flatten(1)
            mixed = (taken != taken[:, :1]).any(1)
            if bool(mixed.any()):
                head = int(mixed.nonzero()[0])
                listed = ", ".join(map(str, sorted(set(taken[head].tolist()))))
                message = f"the bias of head {head} takes entries of the table that belong to heads {listed}"
                yield Finding("violation", "table-by-head", "bias", message, line)
                return


def _parameters(invocation: Invocation) -> list[Tensor]:
    return [each.detach().double() for module in modules_in(invocation.target) for each in module.parameters()]


def _places(numbers: Tensor, table: Tensor) -> Tensor | None:
    """(..., axes): where each of the numbers stands in a table; None where one does not, or stands there twice."""
    entries, order = table.flatten().sort()
    if len(entries) < 2 or bool((entries.diff() < SAME).any()):
        return None
    nearest = torch.searchsorted(entries, numbers - SAME).clamp(max=len(entries) - 1)
    if bool(((entries[nearest] - numbers).abs() > SAME).any()):
        return None
    return torch.stack(torch.unravel_index(order[nearest], table.shape), -1)
