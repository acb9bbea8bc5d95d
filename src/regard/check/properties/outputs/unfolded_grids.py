"""Pictures whose places are folded into one axis of tokens, and unfolded again in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["unfolded_grid_findings"]

FOLDS = frozenset({"view", "_unsafe_view", "_reshape_alias"})


def unfolded_grid_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Rows and columns that were made one axis, and come back as columns and rows: each place gets another's numbers.

    Args:
        invocation: the call.
        base: its run.
    """
    grids = {
        tuple(invocation.arguments[each.argument].shape[axis] for axis in each.token_axes)
        for each in invocation.streams
        if len(each.token_axes) == 2
    }
    folded = set[tuple[int, int]]()
    made = base.made_of(each.storage for each in base.arguments.values())
    for operation in base:
        if operation.name not in FOLDS or operation.inputs[0].storage not in made:
            continue
        given, result = operation.inputs[0].shape, operation.outputs[0].shape
        folded |= _joined_axes(given, result)
        for rows, columns in _joined_axes(result, given):
            is_of_grid = (columns, rows) in grids and rows != columns
            if is_of_grid and (columns, rows) in folded and (rows, columns) not in folded:
                message = (
                    f"{columns} rows of {rows} were made one axis of {rows * columns} tokens, and come back as {rows} "
                    f"rows of {columns}: each place gets the numbers of another"
                )
                yield Finding("violation", "axes-transposed", "block", message, operation.location)
                return


def _joined_axes(several: Sequence[int], fewer: Sequence[int]) -> set[tuple[int, int]]:
    """The sizes of two neighbouring axes that are one in other sizes, which are the same besides."""
    if len(several) != len(fewer) + 1:
        return set()
    return {
        (several[at], several[at + 1])
        for at in range(len(fewer))
        if (*several[:at], several[at] * several[at + 1], *several[at + 2 :]) == (*fewer,)
    }
