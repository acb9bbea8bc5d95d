"""Scores that are exponentiated before the softmax, which does so itself."""

from __future__ import annotations

import re

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED
from regard.check.roles.instances import SOFTMAXES
from regard.check.roles.table import AttentionTable
from regard.check.trace.operation import Operation

__all__ = ["exponentiated_scores"]

EXPONENTIALS = frozenset({"exp", "exp2"})
SAME = 1e-8
"""Of the largest score: how far one may be from a number times the exponential, and another number."""
_ON_PURPOSE = re.compile(r"\bkernel|gauss|\brbf\b|exponential|\bexp\s*\(", re.I)
"""Words of a documentation by which the exponential is the score."""


def exponentiated_scores(evidence: Evidence, documentation: str) -> Finding | None:
    """That a softmax takes the exponentials of q . k, so that a weight is exp(exp(q . k)); None of all else.

    Args:
        evidence: of the attention, whose scores are not linear in q . k.
        documentation: of what was called.
    """
    table = evidence.base
    run, softmaxes = table.instance.run, [each for each in table.instance.softmaxes if each.name in SOFTMAXES]
    own = {each.operation.index for each in table.instance.scores}
    for operation in run.trace:
        if (
            operation.name.rstrip("_") not in EXPONENTIALS
            or not run.owner_of(run.tags.inputs[operation.index][0]) & own
        ):
            continue
        made = run.trace.made_of([operation.outputs[0].storage])
        is_taken = any(each.index > operation.index and each.inputs[0].storage in made for each in softmaxes)
        if is_taken and _ON_PURPOSE.search(documentation) is None and _are_taken_alone(table, operation):
            message = "the softmax takes exponentials of the scores: weights are those of exp(exp(q . k))"
            return Finding("violation", "exponentiated-once", "scores", message, operation.location)
    return None


def _are_taken_alone(table: AttentionTable, exponential: Operation) -> bool:
    """Whether what a softmax takes are exponentials times one number, and another number: no scores times these."""
    rows = table.rows_of_tags()[table.instance.run.tags.outputs[exponential.index][0]]
    known = rows >= 0
    numbers = torch.full_like(table.masked, torch.nan)
    numbers[rows[known]] = exponential.outputs[0].data[known].to(numbers.dtype)
    live = table.masked.isfinite() & numbers.isfinite() & (table.masked > BLOCKED)
    if not bool(live.any()):
        return False
    columns, scores = torch.stack([numbers[live], torch.ones_like(numbers[live])], -1), table.masked[live]
    factors = torch.linalg.lstsq(columns, scores[:, None]).solution[:, 0]
    return float((columns @ factors - scores).abs().max()) <= SAME * float(scores.abs().max())
