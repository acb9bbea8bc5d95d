"""Scores that are times what a caller may hand over, and that have no scale without it."""

from __future__ import annotations

import re

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.scores.formula import SAME_NUMBER, ScoreFit
from regard.check.properties.sums import sums_by
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.cache_forms import parameters_of
from regard.check.target.documented_shapes import said_of
from regard.check.target.names import call_meaning

__all__ = ["optional_scale_design"]

ANY_SCALE = 0.37
"""What is handed over as a scale, to see whether it is one."""
_OF_A_DEFAULT = re.compile(r"default|\bif (?:None|not given|omitted)|otherwise|falls? back", re.I)
"""In what is said of a scale: that there is one without it."""


def optional_scale_design(invocation: Invocation, evidence: Evidence, fit: ScoreFit) -> Finding | None:
    """That scores without a scale are times an argument where a caller hands it over; None of all others.

    What is said of the argument may promise a root of the width without it: then nobody left the scale to the caller.

    Args:
        invocation: a call without the argument.
        evidence: of the attention.
        fit: what its scores are.
    """
    if abs(fit.total - 1) > SAME_NUMBER or bool((evidence.base.group < 0).any()):
        return None
    table, target = evidence.base, invocation.target
    for name, parameter in parameters_of(target).items():
        if call_meaning(name) != "scale" or parameter.default not in (None, 0, False):
            continue
        if invocation.arguments.get(name) is not None or _OF_A_DEFAULT.search(said_of(source_of(target), name)):
            continue
        run = record_invocation(invocation, {**invocation.arguments, name: ANY_SCALE})
        weight = None if run.error else masked_weights(evidence, run)
        for times in (ANY_SCALE, 1 / ANY_SCALE) if weight is not None else ():
            exponentials = (table.masked * times).exp()
            wanted = exponentials / sums_by(table.group, exponentials)[table.group]
            if weight is not None and torch.allclose(weight, wanted, rtol=0.0, atol=SAME_NUMBER):
                message = f"scores are not scaled without {name}: they are times what a caller hands over"
                return Finding("design", "no-scale", "scale", message, table.instance.scores_location)
    return None
