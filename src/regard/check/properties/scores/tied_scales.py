"""Scores that are added over the rows of a grid are scaled by how many rows there are, not by how many columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation

__all__ = ["tied_scale_findings"]

SAME = 1e-9


def tied_scale_findings(invocation: Invocation, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Tied rows whose scores are divided by the square root of the width and of the number of columns.

    Rao et al. 2021, "MSA Transformer", section 3: a sum over M rows is divided by sqrt(M d), so that it is no larger
    than the score of one row.

    Args:
        invocation: a call of a grid.
        instances: its attentions, of tied rows.
    """
    (stream,) = invocation.streams if len(invocation.streams) == 1 else (None,)
    if stream is None or len(stream.token_axes) != 2:
        return
    value = invocation.arguments[stream.argument]
    sides = [int(value.shape[axis]) for axis in stream.token_axes]
    for instance in instances:
        if len(instance.scores) != 1 or len(instance.softmaxes) != 1 or sides[0] == sides[1]:
            continue
        softmax, (product,) = instance.softmaxes[0], instance.scores
        keys = softmax.inputs[0].shape[int(softmax.args[1])]
        terms = int(product.left_terms.shape[1])
        if keys not in sides:
            continue
        rows = sides[1 - sides.index(keys)]
        if terms % rows or terms == rows:
            continue
        width, total = terms // rows, _factor(instance, softmax.index)
        if abs(total - (width * keys) ** -0.5) < SAME:
            message = (
                f"scores are summed over {rows} rows of {width} channels, and are divided by sqrt({width} * {keys}), "
                f"where {keys} is the number of columns: tied rows are divided by sqrt({width} * {rows})"
            )
            yield Finding("violation", "tied-row-scale", "scale", message, product.operation.location, instance.module)
            return


def _factor(instance: AttentionInstance, end: int) -> float:
    """The product of all numbers that something is multiplied or divided by before the softmax."""
    total = 1.0
    for operation in instance.run.trace.operations[:end]:
        number = operation.args[1] if len(operation.args) > 1 else None
        if not isinstance(number, int | float) or isinstance(number, bool) or not number:
            continue
        if operation.name.rstrip("_") == "mul":
            total *= number
        elif operation.name.rstrip("_") == "div":
            total /= number
    return total
