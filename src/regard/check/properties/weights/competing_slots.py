"""Slots that are to compete for the inputs, and whose softmax runs over the inputs of each all the same."""

from __future__ import annotations

import re

from regard.check.properties.finding import Evidence, Finding

__all__ = ["competing_slots"]

_SLOTS = re.compile(r"slot[ _-]?attention", re.I)
_OTHERWISE = re.compile(
    r"\b(?:instead|rather|without|no|not|unlike|softmax (?:is )?over (?:the )?(?:inputs?|keys))\b", re.I
)
"""What is said where they are not to compete."""


def competing_slots(evidence: Evidence, text: str) -> Finding | None:
    """A softmax over the keys of a slot, whose sums are taken once more: over the slots it is no softmax.

    Locatello et al. 2020, "Object-Centric Learning with Slot Attention" (arXiv:2006.15055), section 2.1: the softmax
    runs over the slots, and the weights of each are then divided by their sum over the inputs.

    Args:
        evidence: an attention whose weights sum to 1 over the keys of a query.
        text: the name and the documentation of what was called.
    """
    table = evidence.base
    instance = table.instance
    if not table.of_no_token or not instance.softmaxes or not _SLOTS.search(text) or _OTHERWISE.search(text):
        return None
    softmax, trace = instance.softmaxes[-1], instance.run.trace
    end = instance.sums[0].operation.index
    weights = {softmax.outputs[0].storage}
    for operation in trace.operations[softmax.index + 1 : end]:
        if not any(each.storage in weights for each in operation.inputs):
            continue
        if operation.name == "sum":
            message = (
                "by its name it is slot attention, in which slots compete for each input: the softmax runs over the "
                "inputs of each slot, and the sum that its weights are divided by is 1 already"
            )
            return Finding("violation", "slots-compete", "weights", message, softmax.location)
        weights.update(each.storage for each in operation.outputs)
    return None
