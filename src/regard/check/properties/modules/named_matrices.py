"""Matrices that are handed over: each makes what it is named after, queries, keys or values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.names import role
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import MATRICES
from regard.check.target.fixed_arguments import fixed_matrices, with_matrix
from regard.check.target.names import call_meaning
from regard.check.trace.operation import Trace

__all__ = ["WORDS", "named_matrix_findings", "operands"]

WORDS = {"q": "queries", "k": "keys", "v": "values"}


def named_matrix_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Two matrices that are handed over and exchanged: each makes what the other is named after.

    Whoever hands over weights says by these names which are which. A module's own learn whatever they are used for.

    Args:
        invocation: the call.
        evidence: its only attention.
    """
    named = {name: (found, each) for name, found, each in _matrices(invocation)}
    if len({found for found, _ in named.values()}) < 2:
        return
    base = operands(evidence, evidence.base.instance.run.trace)
    makes: dict[tuple[str, str], str] = {}
    for number, (name, (found, matrix)) in enumerate(named.items()):
        drawn = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(number), dtype=matrix.dtype)
        other = operands(evidence, record_invocation(_with(invocation, name, matrix + drawn)))
        moved = [each for each in base if each in other and bool(differs(base[each], other[each]).any())]
        if len(moved) == 1:  # of several heads, one is looked at
            makes.setdefault((found, moved[0]), name)
    for one, two in (("q", "k"), ("k", "v"), ("q", "v")):
        pair = makes.get((one, two)), makes.get((two, one))
        if None not in pair and (one, one) not in makes and (two, two) not in makes:
            message = f"{pair[0]} makes the {WORDS[two]} and {pair[1]} the {WORDS[one]}: they are exchanged"
            yield Finding("violation", "matrix-as-named", "projections", message, _line(evidence))


def _line(evidence: Evidence) -> Any:
    return evidence.base.instance.scores_location


def _matrices(invocation: Invocation) -> Iterator[tuple[str, str, Tensor]]:
    """Path, role by name, and numbers of each matrix of queries, keys or values that a call gives or that is fixed."""
    for name, value in invocation.arguments.items():
        means = call_meaning(name)
        if means in MATRICES and isinstance(value, Tensor) and value.ndim == 2 and means[2:] in WORDS:
            yield name, means[2:], value
    for path, value in fixed_matrices(invocation.target).items():
        if (means := role(path)) in WORDS:
            yield path, means, value


def _with(invocation: Invocation, path: str, matrix: Tensor) -> Invocation:
    if path in invocation.arguments:
        return replace(invocation, arguments={**invocation.arguments, path: matrix})
    return replace(invocation, target=with_matrix(invocation.target, path, matrix))


def operands(evidence: Evidence, trace: Trace) -> Mapping[str, Any]:
    """Queries, keys and values in a run of the same steps, as they are multiplied."""
    instance = evidence.base.instance
    scores, sums = instance.scores[0], instance.sums[-1]
    places = {"left": scores.left_place, "right": scores.right_place, "v": instance.values_place(sums)}
    if len(trace) != len(instance.run.trace):
        return {}
    found = {role: trace.operations[index].inputs[number].data for role, (index, number) in places.items()}
    own = instance.run.trace.operations[places["left"][0]].inputs[places["left"][1]].data
    query = evidence.base.q[0].to(own.dtype)
    rows = [each for each in (own, own.mT) if own.ndim > 1 and each.shape[-1] == len(query)]
    is_left = any(bool((each == query).all(-1).any()) for each in rows)
    names = {"left": "q", "right": "k"} if is_left else {"left": "k", "right": "q"}
    return {names.get(role, role): data for role, data in found.items()}
