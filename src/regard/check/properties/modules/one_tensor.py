"""Keys and values that are one tensor: they are projected as equal ones of two tensors are."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.trace.operation import Trace
from regard.check.trace.recorder import record

__all__ = ["one_tensor_findings"]

SAME = 1e-9
"""Of the largest number of an output."""


def one_tensor_findings(invocation: Invocation) -> Iterator[Finding]:
    """An output that is another one where keys and values are the same tensor, and not two equal ones.

    Code may ask whether they are one, to project both by one product. It may ask the same of the queries, since
    self-attention may be meant to be another one: that is not held against it.

    Args:
        invocation: a call.
    """
    keys, values = (next((each for each in invocation.streams if each.role == role), None) for role in "kv")
    if keys is None or values is None or invocation.arrays or invocation.packed:
        return
    tensor = invocation.arguments[keys.argument]
    if tensor.shape != invocation.arguments[values.argument].shape or keys.token_axes != values.token_axes:
        return
    names = keys.argument, values.argument
    given = {**invocation.arguments, **dict.fromkeys(names, tensor)}
    two, again = (
        record(lambda watch: invocation.run(given, watch=watch), outputs=invocation.outputs, lines=True) for _ in "ab"
    )
    one = record(
        lambda watch: invocation.run(given | dict.fromkeys(names, tensor.clone()), watch=watch, shared=names),
        outputs=invocation.outputs,
        lines=True,
    )
    if one.error or two.error or not two.outputs or _gap(two, again) > 0.0:
        return
    gap = _gap(one, two)
    if gap > SAME * max(1.0, float(two.outputs[0].data.abs().max())):
        message = (
            f"where {names[0]} and {names[1]} are one tensor, the output differs by up to {gap:.2g} from that of two "
            "equal tensors: keys and values are projected by other rows of the weights"
        )
        yield Finding("violation", "one-tensor-as-two", "call", message, _line_of_its_own(one, two))


def _gap(one: Trace, other: Trace) -> float:
    first, second = one.outputs[0].data, other.outputs[0].data
    return float((first - second).abs().max()) if first.shape == second.shape and first.numel() else float("inf")


def _line_of_its_own(one: Trace, other: Trace) -> CodeLocation | None:
    """The first line that only one of two runs goes through."""
    lines = {(each.location.file, each.location.line) for each in other if each.location is not None}
    own = (each.location for each in one if each.location is not None)
    return next((each for each in own if (each.file, each.line) not in lines), None)
