"""NaN: the first operation that makes one of numbers, and what it was made of."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["nan_findings"]

UNWRITTEN = ("empty", "new_empty")
"""The beginnings of the names of operations whose numbers are what the memory held before."""


def nan_findings(trace: Trace) -> Iterator[Finding]:
    """A note where a run returns NaN: from which step on, and why, where that is seen."""
    if not any(map(_has_nan, trace.outputs)):
        return
    for operation in trace:
        if operation.name.startswith(UNWRITTEN) or any(map(_has_nan, operation.inputs)):
            continue
        if any(map(_has_nan, operation.outputs)):
            yield Finding("note", "nan", "weights", f"your output holds NaN {_origin(operation)}", operation.location)
            return


def _has_nan(record: TensorRecord) -> bool:
    return record.data.is_floating_point() and bool(record.data.isnan().any())


def _origin(operation: Operation) -> str:
    if operation.name in SOFTMAXES:
        axis = int(operation.args[1])
        empty = torch.isneginf(operation.inputs[0].data).all(axis)
        if bool(empty.any()):
            row = int(empty.nonzero()[0, -1]) if empty.ndim else 0
            return f"from step weights on, where row {row} has nothing to attend to"
        return "from step weights on, where a score is infinite"
    where = f": {operation.location}" if operation.location is not None else ""
    return f"from the operation {operation.name} on{where}"
