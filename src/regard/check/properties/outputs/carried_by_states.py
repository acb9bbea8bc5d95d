"""Recurrent layers that stand behind an attention, as DPTNet's in place of a feed-forward network."""

from __future__ import annotations

from collections.abc import Sequence

from regard.check.roles.instances import AttentionInstance
from regard.check.roles.recurrences import recurrent_outputs
from regard.check.trace.operation import Operation

__all__ = ["read_by_states"]


def read_by_states(instance: AttentionInstance, sizes: Sequence[int]) -> tuple[Operation, int] | None:
    """What reads, before a recurrent layer, rows that were made of weighted sums: an operation and which input it is.

    A state of the layer carries what one token read to the others, so that the rows are seen before they enter it.

    Args:
        instance: the attention.
        sizes: of the rows, with all axes but the channels.
    """
    trace = instance.run.trace
    made = trace.made_of(each.output.storage for each in instance.sums)
    for index in sorted(recurrent_outputs(trace)):
        joined = trace.operations[index]
        if not {each.storage for each in joined.inputs} <= made:
            continue
        states = {each.storage for each in joined.inputs}
        first = next(each.index for each in trace if any(one.storage in states for one in each.outputs))
        for operation in reversed(trace.operations[:first]):
            for number, each in enumerate(operation.inputs):
                if each.storage in made and tuple(each.data.shape[:-1]) == tuple(sizes):
                    return operation, number
        return None
    return None
