"""A decoder that takes one new token in each call: the positions of its tokens go on from call to call."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["step_position_findings"]

MIN_STEPS = 3
UNIT = 1e-5
"""How far a rotation may be from a length of 1: tables are made in float32."""


def step_position_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """A table of rotations or sines of which every step reads the row of position 0, and no step another one.

    Args:
        invocation: a call that hands one token after the other to its target.
        base: the run of it.
    """
    if not invocation.steps_from:
        return
    stream = next(each for each in invocation.streams if each.token_axes)
    count = invocation.tokens_of(stream)
    of_tokens = base.made_of(each.storage for each in base.arguments.values())
    rows, lines = dict[int, set[int]](), dict[int, tuple[int, CodeLocation | None]]()
    for operation in base:
        read = _rows_read(operation)
        if read is None or operation.inputs[0].storage in of_tokens:
            continue
        axis, numbers = read
        table = operation.inputs[0].data.movedim(axis, 0)
        if len(table) < max(count, MIN_STEPS) or not _is_of_places(table):
            continue
        storage = operation.inputs[0].storage
        rows.setdefault(storage, set()).update(numbers)
        times, line = lines.get(storage, (0, operation.location))
        lines[storage] = times + 1, line
    for storage, numbers in rows.items():
        times, line = lines[storage]
        if numbers == {0} and times >= count >= MIN_STEPS:
            message = (
                f"of {count} tokens, one a call, each reads row 0 of the table of positions, whatever "
                f"{invocation.steps_from} says: all stand at the beginning of the text"
            )
            yield Finding("violation", "cache-positions", "positions", message, line)
            return


def _rows_read(operation: Operation) -> tuple[int, set[int]] | None:
    """The axis along which an operation reads some places of a tensor, and which; None where it does something else."""
    if not operation.inputs or not operation.inputs[0].data.ndim:
        return None
    size, args = operation.inputs[0].shape, operation.args
    if operation.name == "slice":
        axis = args[1] % len(size) if len(args) > 1 else 0
        first, end = (args[at] if len(args) > at else None for at in (2, 3))
        return axis, {*range(size[axis])[first:end]}
    if operation.name == "select":
        return args[1] % len(size), {args[2] % size[args[1]]}
    if operation.name == "embedding":
        return 0, {*operation.inputs[1].data.flatten().tolist()}
    if operation.name == "index_select":
        return args[1] % len(size), {*operation.inputs[1].data.flatten().tolist()}
    if operation.name == "index" and len(operation.inputs) == 2 and len(args[1]) == 1:
        places = operation.inputs[1].data
        return (0, {*places.flatten().tolist()}) if places.dtype == torch.long else None
    return None


def _is_of_places(table: Tensor) -> bool:
    """Whether its rows are rotations, cosines, sines or both, of angles that begin with 0 and go on from row to row."""
    rows = table.flatten(1)
    if not (rows.is_complex() or rows.is_floating_point()) or not bool(rows.isfinite().all()):
        return False
    if bool((rows[1:] == rows[0]).all(1).any()):
        return False
    if rows.is_complex():
        return bool((rows[0] == 1).all()) and bool(((rows.abs() - 1).abs() < UNIT).all())
    is_begun = bool(((rows[0] == 0) | (rows[0] == 1)).all())
    if not is_begun or float(rows.abs().max()) > 1 + UNIT:
        return False
    # A causal mask has 0s and 1s alone, as has a table of one-hot vectors.
    return not bool(((rows == 0) | (rows == 1)).all())
