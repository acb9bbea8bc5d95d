"""Weights that are kept from zero for a logarithm, and are added to the scores without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.instances import SOFTMAXES
from regard.check.trace.operation import Operation, Trace

__all__ = ["clamped_bias_findings"]

LEAST = 1e-3
"""A number that nothing is kept above but for what follows, as a logarithm, a quotient or a root."""
COPIES = frozenset({"clone", "contiguous", "_to_copy", "repeat", "expand", "cat", "stack"})


def clamped_bias_findings(base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Numbers that are clamped just above zero, and are nothing but added to the scores.

    Hu et al. 2018, "Relation Networks for Object Detection", equation 3: weights of geometry multiply the exponentials
    of the scores; within a softmax their logarithms are added. Whoever means a bias has no need of a least number.

    Args:
        base: a run.
        several: the evidence of its attentions.
    """
    for each in several:
        scored = base.made_of({one.operation.outputs[0].storage for one in each.base.instance.scores})
        for operation in base:
            if not _is_kept_from_zero(operation):
                continue
            reads = _reads(base, operation)
            sums = [one for one in reads if one.is_addition and any(two.storage in scored for two in one.inputs)]
            if not sums or len(sums) < len(reads) or not _is_weighed(base, sums[0]):
                continue
            message = (
                f"weights are kept above {_least(operation):.2g}, as for a logarithm, and are added to the scores as "
                "they are: behind the softmax they are to multiply, and within it their logarithms are added"
            )
            yield Finding("violation", "bias-of-logarithms", "scores", message, sums[0].location)
            return


def _least(operation: Operation) -> float:
    given = operation.args[1] if len(operation.args) > 1 else operation.kwargs.get("min")
    return float(given) if isinstance(given, int | float) else 0.0


def _is_kept_from_zero(operation: Operation) -> bool:
    return operation.name.rstrip("_") in ("clamp", "clamp_min") and 0 < _least(operation) <= LEAST


def _reads(base: Trace, operation: Operation) -> list[Operation]:
    """What computes with the result of an operation, or with a copy of it."""
    made, found = {operation.outputs[0].storage}, list[Operation]()
    for each in base.operations[operation.index + 1 :]:
        if not any(one.storage in made for one in each.inputs):
            continue
        if each.name in COPIES:
            made.add(each.outputs[0].storage)
        elif not each.is_view or each.is_in_place:
            found.append(each)
    return found


def _is_weighed(base: Trace, total: Operation) -> bool:
    """Whether a softmax takes a sum, or what is only scaled or masked of it."""
    made = {total.outputs[0].storage}
    for each in base.operations[total.index + 1 :]:
        if each.inputs and each.inputs[0].storage in made:
            if each.name in SOFTMAXES:
                return True
            if each.name.rstrip("_") in ("mul", "div", "masked_fill", "add", *COPIES) or each.is_view:
                made.update(one.storage for one in each.outputs)
    return False
