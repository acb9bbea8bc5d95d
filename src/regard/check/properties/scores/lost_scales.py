"""Scores that are divided, or multiplied, by a number, and go into the softmax as they were."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.properties.lost_names import is_lost
from regard.check.roles.instances import SOFTMAXES
from regard.check.trace.operation import Operation, Trace

__all__ = ["lost_scale_findings"]


def lost_scale_findings(trace: Trace) -> Iterator[Finding]:
    """What a softmax takes, of which another line has made something with a number that nothing reads.

    As where ``scaled = scores / root`` is followed by ``scores.softmax(-1)``. What has a name that a later line reads,
    on whatever condition, is left alone, and so is what an object keeps.

    Args:
        trace: the run.
    """
    used = {each.storage for each in trace.outputs}
    softmaxed = dict[int, Operation]()
    for operation in reversed(trace.operations):
        taken = operation.inputs[0] if operation.inputs else None
        if taken is None or (operation.is_view and not operation.is_in_place):
            continue
        if operation.name in SOFTMAXES:
            softmaxed[taken.storage] = operation
        is_made = operation.outputs and not operation.is_in_place and not operation.written
        is_unread = is_made and operation.outputs[0].storage not in used
        line = operation.location
        if is_unread and _is_by_a_number(operation) and taken.storage in softmaxed and line is not None:
            reader = softmaxed[taken.storage]
            if reader.inputs[0].shape == taken.shape and is_lost(line):
                message = (
                    "scores are divided, or multiplied, by a number, and what that returns is read by nothing: the "
                    "softmax takes them as they were"
                )
                yield Finding("violation", "scale", "scale", message, reader.location or line)
                return
        used |= {each.storage for each in operation.inputs}


def _is_by_a_number(operation: Operation) -> bool:
    """Whether it is a product or a quotient with one number for all."""
    if operation.name not in ("mul", "div"):
        return False
    return all(each.data.numel() == 1 for each in operation.inputs[1:]) and operation.inputs[0].data.numel() > 1
