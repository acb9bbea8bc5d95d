"""Whether a call writes into the sequences that it is handed: also where vectors are handed over beside these."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["written_input_findings"]


def written_input_findings(invocation: Invocation, trace: Trace) -> Iterator[Finding]:
    """The first line that writes into a sequence of the caller's, as where positions are added in place.

    Args:
        invocation: the call.
        trace: what it computed.
    """
    sequences = {each.argument for each in invocation.streams}
    for run in (trace, *(record_invocation(each, lines=True) for each in _with_vectors(invocation))):
        written = None if run.error else _first_written(run, sequences)
        if written is not None:
            name, line = written
            message = f"the call writes into {name}, its caller's: what reads it later gets other numbers"
            yield Finding("violation", "inputs-kept", "call", message, line)
            return


def _with_vectors(invocation: Invocation) -> Iterator[Invocation]:
    """The call with one more argument each: a tensor that may be missing, of the shape of its first sequence.

    As the positions that DETR adds to queries and keys. What has no annotation may be one.
    """
    if not invocation.streams or invocation.arrays:
        return
    call = invocation.target.forward if isinstance(invocation.target, nn.Module) else invocation.target
    try:
        parameters = inspect.signature(call).parameters.values()
    except (ValueError, TypeError):
        return
    like = invocation.arguments[invocation.streams[0].argument]
    for each in parameters:
        is_untold = each.annotation is inspect.Parameter.empty
        is_vector = each.default is None and (is_untold or "Tensor" in str(each.annotation))
        if is_vector and each.name not in invocation.arguments and like.is_floating_point():
            yield replace(invocation, arguments={**invocation.arguments, each.name: like.flip(0)})


def _first_written(trace: Trace, sequences: set[str]) -> tuple[str, CodeLocation | None] | None:
    """The sequence that is written into first, and the line; None where none is."""
    given = {each.storage: name for name, each in trace.arguments.items() if name in sequences}
    for operation in trace:
        for each in operation.written:
            if each.storage in given:
                return given[each.storage], operation.location
    return None
