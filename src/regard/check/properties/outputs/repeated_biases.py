"""Vectors that are handed over and added to the output: once, and not with the result of each head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.trace.operation import Trace

__all__ = ["repeated_bias_findings"]

TOLERANCE = 1e-9


def repeated_bias_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """A vector by which the output moves twice as far as it, or farther, at every token.

    A module learns its own bias, whatever it is multiplied by; what is handed over is that of another implementation.

    Args:
        invocation: a call.
        base: its run.
    """
    sequences = {each.argument for each in invocation.streams}
    for name, value in invocation.arguments.items():
        if name in sequences or not isinstance(value, Tensor) or value.ndim != 1 or not value.is_floating_point():
            continue
        step = torch.linspace(1.0, 2.0, len(value), dtype=value.dtype)
        try:
            moved = invocation.outputs(invocation.run({**invocation.arguments, name: value + step}))
        except Failed:
            continue
        before = base.outputs[0].data
        if not moved or moved[0].shape != before.shape or before.ndim < 2 or before.shape[-1] != len(value):
            continue
        times = (moved[0] - before) / step
        number = round(float(times.mean()))
        if number > 1 and bool(((times - number).abs() < TOLERANCE * number).all()):
            message = f"{name} is added to the output {number} times, as with the result of each head"
            yield Finding("violation", "projected-once", "projections", message, _line(base, value))
            return


def _line(base: Trace, value: Tensor) -> CodeLocation | None:
    """Where a vector is added for the last time."""
    for operation in reversed(base.operations):
        if operation.name.rstrip("_") == "add" and any(torch.equal(each.data, value) for each in operation.inputs):
            return operation.location
    return None
