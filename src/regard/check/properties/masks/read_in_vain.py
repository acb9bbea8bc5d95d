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

__all__ = ["read_in_vain"]

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
