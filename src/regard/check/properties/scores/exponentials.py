"""Scores that are exponentiated before the softmax, which does so itself."""

from __future__ import annotations

import re

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.instances import SOFTMAXES

__all__ = ["exponentiated_scores"]

EXPONENTIALS = frozenset({"exp", "exp2"})
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
        if _ON_PURPOSE.search(documentation) is None and any(
            each.index > operation.index and each.inputs[0].storage in made for each in softmaxes
        ):
            message = "the softmax takes exponentials of the scores: weights are those of exp(exp(q . k))"
            return Finding("violation", "exponentiated-once", "scores", message, operation.location)
    return None
