"""Layers whose input is added twice: by the layer itself, and by the code around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Finding
from regard.check.properties.modules.residuals import is_sum
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation

__all__ = ["repeated_residual_findings"]

MOST_IN_A_LAYER = 3
"""Attentions of one layer, as of a decoder that reads two other sequences."""


def repeated_residual_findings(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """In all layers a sum of what the layer was given with a sum that holds it already.

    A connection around several layers, or around one alone, may be meant; so is a first input that comes back in all.

    Args:
        run: the run.
        instances: its attentions.
    """
    if len(instances) < 2:
        return
    trace = run.trace
    ends = [each.sums[-1].operation.index for each in instances]
    of_tokens = trace.made_of(each.storage for each in trace.arguments.values())
    attended = [trace.made_of({each.operation.outputs[0].storage for each in one.sums}) for one in instances]
    terms, copied = dict[int, Counter[int]](), trace.originals()
    again: list[Operation] = []
    for operation in trace:
        made = operation.outputs[0].storage if operation.outputs else None
        if made is None or (operation.is_view and not operation.written):
            continue
        if not is_sum(operation):
            terms.pop(made, None)
            continue
        summed = [copied.get(each.storage, each.storage) for each in operation.inputs]
        one, two = (terms.get(each, Counter([each])) for each in summed)
        before = [each for each, end in zip(attended, ends, strict=True) if end < operation.index]
        for part, whole, record in ((one, two, operation.inputs[0]), (two, one, operation.inputs[1])):
            if not before or part == whole or not part <= whole or record.storage not in of_tokens - before[-1]:
                continue
            if len(before) == 1 or any(record.storage in each for each in before[-1 - MOST_IN_A_LAYER : -1]):
                again.append(operation)
        terms[made] = one + two
    if len(again) >= 2 and len(again) * MOST_IN_A_LAYER >= len(instances):
        message = "in every layer the input is added to what it was added to before: the residual is twice"
        yield Finding("violation", "residual-once", "block", message, again[0].location)
