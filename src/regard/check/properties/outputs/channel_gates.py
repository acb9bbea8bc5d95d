"""Gates of channels: what was read is multiplied by sigmoids that are made of all tokens (squeeze and excitation)."""

from __future__ import annotations

from regard.check.roles.instances import AttentionInstance
from regard.check.trace.operation import Operation

__all__ = ["gated_by_all"]

GATES = frozenset({"sigmoid", "hardsigmoid"})


def gated_by_all(instance: AttentionInstance, tokens: int) -> tuple[Operation, int] | None:
    """The product with such gates, and which of its factors they multiply; None where there is none.

    There is at most one gate for each channel of a sample: what a token alone is multiplied by is another gate.
    "Squeeze-and-Excitation Networks" (arXiv:1709.01507, section 3), CBAM (arXiv:1807.06521, section 3).

    Args:
        instance: an attention, whose weighted sums are what was read.
        tokens: how many there are in a sample.
    """
    trace = instance.run.trace
    made = trace.made_of(each.output.storage for each in instance.sums)
    most = sum(each.output.data.numel() for each in instance.sums) // tokens
    gates = {
        each.outputs[0].storage
        for each in trace
        if each.name in GATES and each.inputs[0].storage in made and each.outputs[0].data.numel() <= most
    }
    gated = trace.made_of(gates)
    for operation in trace:
        if operation.name != "mul" or len(operation.inputs) != 2:
            continue
        are_gates = [each.storage in gated for each in operation.inputs]
        if sum(are_gates) == 1 and all(each.storage in made for each in operation.inputs):
            return operation, are_gates.index(False)
    return None
