"""Tokens and channels whose axes a reshape exchanges in name alone: the numbers stay where they lay."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Finding
from regard.check.roles.influence import stream_sizes
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["exchanged_axis_findings"]

RESHAPES = frozenset({"view", "_unsafe_view", "_reshape_alias"})
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"})
NORMS = frozenset({"native_layer_norm", "_fused_rms_norm"})


def exchanged_axis_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """A reshape of (channels, tokens) to (tokens, channels), or back, whose rows are read as tokens or channels.

    Also of the rows and columns of a picture. Of (tokens, tokens + 1), as where relative scores are shifted, the
    result is cut before anything reads it.

    Args:
        invocation: the call.
        base: its run.
    """
    counts = {count for each in invocation.streams if (count := stream_sizes(invocation, each)[1]) > 1}
    made = base.made_of(each.storage for each in base.arguments.values())
    for operation in base:
        if operation.name not in RESHAPES or operation.inputs[0].storage not in made:
            continue
        given, result = operation.inputs[0].shape, operation.outputs[0].shape
        exchanged = _exchanged(given, result)
        if exchanged is None or exchanged[0] not in counts or not _is_read(base, operation, exchanged[1]):
            continue
        one, other = (", ".join(map(str, each)) for each in (given, result))
        message = (
            f"({one}) is reshaped to ({other}), not transposed: each token of it is made of numbers of several tokens"
        )
        yield Finding("violation", "axes-transposed", "block", message, operation.location)
        return


def _exchanged(given: Sequence[int], result: Sequence[int]) -> tuple[int, bool] | None:
    """How many places have changed sides with the channels, and whether the channels are last now; else None."""
    start = 0
    while start < min(len(given), len(result)) and given[start] == result[start]:
        start += 1
    front, before, after = given[:start], given[start:], result[start:]
    if min(len(before), len(after)) < 2 or before[-1] == after[-1] or _are_regrouped(before, after):
        return None  # axes were joined or parted where they stand, and no token took others' numbers
    for is_last, (outer, inner) in ((True, (before, after)), (False, (after, before))):
        channels, places = outer[0], math.prod(outer[1:])
        if channels != inner[-1] or places != math.prod(inner[:-1]) or min(channels, places) < 2:
            continue
        if channels != places and not {channels, places} & {*front}:
            return places, is_last
    return None


def _are_regrouped(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether neighbouring axes of one shape were joined to those of the other: all borders of the fewer axes stay."""
    borders, others = ({*itertools.accumulate(each, operator.mul)} for each in (one, other))
    return borders <= others or others <= borders


def _is_read(trace: Trace, reshape: Operation, is_last: bool) -> bool:
    """Whether what a reshape made is added to, projected, normalized, convolved or returned in its new shape."""
    result = reshape.outputs[0]
    front = {_key(result)}
    for operation in trace.operations[reshape.index + 1 :]:
        taken = [each for each in operation.inputs if _key(each) in front]
        if not taken:
            continue
        if operation.name == "convolution":
            return not is_last and taken[0] is operation.inputs[0]
        if is_last and (operation.name in NORMS or operation.name in PRODUCTS):
            return True
        for each in operation.outputs:
            is_same = each.shape == result.shape
            if operation.is_addition and is_same and all(one.shape == each.shape for one in operation.inputs):
                return True
            is_flat = operation.is_view and is_last and len(each.shape) == 2 and each.shape[-1] == result.shape[-1]
            if is_same or is_flat:
                front.add(_key(each))
    return any(_key(each) in front for each in trace.outputs)


def _key(record: TensorRecord) -> tuple[int, tuple[int, ...]]:
    return record.storage, record.shape
