"""Masks that code asks for their truth, as ``if mask:``, which a tensor of several numbers has none of."""

from __future__ import annotations

import ast

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.drawn import open_mask
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import nodes_of, source_of

__all__ = ["asked_for_truth"]

FILLING = frozenset({"masked_fill", "masked_fill_", "where"})
"""What takes a mask as a tensor."""
NO_TRUTH = "Boolean value of Tensor with more than one value"
"""In PyTorch's error."""


def asked_for_truth(invocation: Invocation, evidence: Evidence, name: str) -> Finding | None:
    """That every call with a mask raises, as the line that reads it stands below its truth; None of all others.

    A flag may have the name of a mask: no line fills scores by it.

    Args:
        invocation: the call.
        evidence: of the attention.
        name: of its mask.
    """
    fills = [each for each in nodes_of(source_of(invocation.target), ast.If) if _is_filled_by(each, name)]
    if not fills:
        return None
    table = evidence.base
    shape = table.dense(table.weight).shape
    for sizes in (shape, shape[:1] + shape[2:], shape[2:]):
        for form in ("allowed", "keep"):
            run = record_invocation(invocation, {**invocation.arguments, name: open_mask(sizes, form)})
            if NO_TRUTH not in run.error:
                return None
    message = f"{name} is asked for its truth, which a tensor of several numbers has none of: a call with a mask raises"
    return Finding("violation", "mask-argument", "mask", message, table.instance.scores_location)


def _is_filled_by(condition: ast.If, name: str) -> bool:
    """Whether a condition is a name alone, and scores are filled below by what was handed over under it."""
    if not (isinstance(condition.test, ast.Name) and condition.test.id == name):
        return False
    inside = [node for each in condition.body for node in ast.walk(each)]
    if any(isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id == name for each in inside):
        return False
    return any(
        isinstance(each, ast.Call)
        and getattr(each.func, "attr", getattr(each.func, "id", "")) in FILLING
        and any(isinstance(one, ast.Name) and one.id == name for value in each.args for one in ast.walk(value))
        for each in inside
    )
