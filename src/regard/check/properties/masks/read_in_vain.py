"""Masks that change scores and no weight, as what is added to all scores of a query alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.drawn import open_mask
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.masks.outcome_findings import have_no_effect
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import COPIES

__all__ = ["prepared_in_vain", "read_in_vain"]

READ_AS_NUMBER = "_local_scalar_dense"
"""The operation of ``item()``, and of what asks for one number of a tensor."""

MOST_TRIED = 3
"""Masks: of booleans, and of numbers."""


def read_in_vain(
    invocation: Invocation, evidence: Evidence, outcomes: Sequence[MaskOutcome], name: str
) -> list[Finding]:
    """That scores are others where a mask blocks keys, and that no weight is: it stands on the axis of the queries.

    Code whose own mask stands in the place of one that is handed over does not read that.

    Args:
        invocation: the call.
        evidence: of its attention.
        outcomes: of masks that were tried.
        name: of the mask.
    """
    if not have_no_effect(outcomes):
        return []
    score = evidence.base.instance.scores[0].operation
    shape = score.outputs[0].shape
    for outcome in outcomes[:MOST_TRIED]:
        values = open_mask(outcome.value.shape, outcome.form), outcome.value
        free, run = (record_invocation(invocation, {**invocation.arguments, name: each}, lines=True) for each in values)
        if free.error or run.error or not run.same_operations(free):
            continue
        products = [one for each in run if each.name == score.name for one in each.outputs if one.shape == shape]
        scored = run.made_of([each.storage for each in products])
        for before, after in zip(free, run, strict=True):
            pairs = zip(before.outputs, after.outputs, strict=True)
            if after.name == score.name or not any(
                other.storage in scored and one.shape == shape and not torch.equal(one.data, other.data)
                for one, other in pairs
            ):
                continue
            message = f"{name} is added to all scores of a query alike: it changes scores, and no weight"
            return [Finding("violation", "mask-argument", "mask", message, after.location)]
    return []


def prepared_in_vain(invocation: Invocation, outcomes: Sequence[MaskOutcome], name: str) -> list[Finding]:
    """That tensors are computed of a mask, and nothing that is returned of these.

    As where it is made ready for a product of scores, and a fused kernel is told ``is_causal=True`` instead. What is
    read as a number, such as how long the longest text is, may steer the code.

    Args:
        invocation: the call.
        outcomes: of masks that were tried.
        name: of the mask.
    """
    if not have_no_effect(outcomes):
        return []
    run = record_invocation(invocation, {**invocation.arguments, name: outcomes[0].value}, lines=True)
    if run.error or name not in run.arguments:
        return []
    made = run.made_of([run.arguments[name].storage])
    takers = [each for each in run if any(one.storage in made for one in each.inputs)]
    if any(one.storage in made for one in run.outputs) or any(each.name == READ_AS_NUMBER for each in takers):
        return []
    for each in takers:
        if each.name not in COPIES and not each.is_view and each.outputs and each.outputs[0].data.numel() > 1:
            message = f"what is computed of {name} is used nowhere: what it blocks is seen"
            return [Finding("violation", "mask-argument", "mask", message, each.location)]
    return []
