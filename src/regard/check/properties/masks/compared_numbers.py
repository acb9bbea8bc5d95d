"""Masks that are made by a comparison: of two tokens each, and not of every number with itself."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.trace.operation import TensorRecord, Trace, reached

__all__ = ["compared_with_itself_findings"]

COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})


def compared_with_itself_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Whole numbers, as those of segments, every one of which is compared with itself: the answer is always the same.

    Of numbers with a fraction it tells which are NaN.

    Args:
        invocation: a call.
        base: its run.
    """
    axes = [each for each in invocation.streams if each.batch_axis is not None]
    samples = max((invocation.arguments[each.argument].shape[each.batch_axis or 0] for each in axes), default=1)
    for operation in base:
        if operation.name not in COMPARISONS or len(operation.inputs) != 2:
            continue
        one, other = operation.inputs
        # A single token is compared with itself by right code as well.
        if one.data.is_floating_point() or one.data.numel() <= samples or not _are_one(one, other):
            continue
        made = reached([operation.outputs[0].storage], base.operations[operation.index + 1 :])
        if any(each.storage in made for each in base.outputs):
            message = "each number is compared with itself, and not what a query is with what a key is"
            yield Finding("violation", "compared-with-others", "mask", message, operation.location)
            return


def _are_one(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether two tensors have the same numbers of the same memory at the same places."""
    if (one.storage, one.offset, one.shape) != (other.storage, other.offset, other.shape):
        return False
    strides = zip(one.shape, one.stride, other.stride, strict=True)
    return all(size == 1 or mine == its for size, mine, its in strides)
