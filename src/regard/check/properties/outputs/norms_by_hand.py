"""Norms over all tokens and channels of a sample that the code writes itself."""

from __future__ import annotations

from regard.check.roles.instances import AttentionInstance
from regard.check.trace.operation import Operation

__all__ = ["deviation_of_all"]

DEVIATIONS = frozenset({"std", "std_mean", "var", "var_mean"})


def deviation_of_all(instance: AttentionInstance, tokens: int) -> tuple[Operation, int] | None:
    """The operation that takes the deviation of what was read over all tokens and channels, and which input that is.

    As `x.var((1, 2))`, by which the layers of solvers of routing problems are normed (Ma et al. 2021, "Learning to
    Iteratively Solve Routing Problems with Dual-Aspect Collaborative Transformer"). Over the tokens alone it is none.

    Args:
        instance: an attention, whose weighted sums are what was read.
        tokens: how many there are in a sample.
    """
    trace = instance.run.trace
    made = trace.made_of(each.output.storage for each in instance.sums)
    for operation in trace:
        if operation.name in DEVIATIONS and operation.inputs[0].storage in made:
            taken = operation.inputs[0].data
            if taken.numel() >= operation.outputs[0].data.numel() * tokens * taken.shape[-1]:
                return operation, 0
    return None
