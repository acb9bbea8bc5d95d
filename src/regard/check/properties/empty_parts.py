"""Calls in which a part of the channels is empty, as that which partial rotary positions leave alone."""

from __future__ import annotations

from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.sizes import DISTINCT_SIZES
from regard.check.trace.operation import Trace

__all__ = ["with_whole_parts"]


def with_whole_parts(invocation: Invocation, base: Trace) -> tuple[Invocation, Trace]:
    """The call and its run, of wider heads where a part of the channels has none, and none is empty with these.

    Args:
        invocation: the call.
        base: its run.
    """
    width = invocation.sizes.get("d_head", 0)
    if not _has_empty_parts(base):
        return invocation, base
    for sizes in DISTINCT_SIZES:
        if sizes.d_head <= width:
            continue
        for wider in invocation.resized(sizes):
            run = record_invocation(wider, lines=True)
            if not run.error and not _has_empty_parts(run):
                return wider, run
    return invocation, base


def _has_empty_parts(run: Trace) -> bool:
    """Whether a piece was cut out of a tensor's channels that has none."""
    return any(
        operation.is_view
        and bool(operation.inputs)
        and operation.inputs[0].data.numel() > 0
        and _is_empty(output.shape)
        for operation in run
        for output in operation.outputs
    )


def _is_empty(shape: tuple[int, ...]) -> bool:
    return len(shape) > 2 and shape[-1] == 0 and 0 not in shape[:-1]
