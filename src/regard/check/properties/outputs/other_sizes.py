"""What shows in calls of more tokens alone: blocks of tokens that are no whole number, and several windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.analysis import Analysis
from regard.check.properties.finding import Finding
from regard.check.properties.outputs.uneven_blocks import uneven_block_findings
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["other_size_findings"]

AT_ITS_PLACE = frozenset({"output-of-the-token", "output-at-its-place"})
MOST_TOKENS = 100
"""Of a picture that is twice as high and twice as wide."""


def other_size_findings(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """What calls of other sizes violate.

    Args:
        analysis: of a call without violations.
        judge: what analyzes another call.
    """
    yield from uneven_block_findings(analysis, judge)
    yield from _rolled_picture(analysis, judge)


def _rolled_picture(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """Whether a picture that is rolled comes back to its place where it is twice as high and as wide.

    A picture of one window may come back by rolling on, since half a window twice is the whole picture.
    """
    invocation = analysis.invocation
    stream = invocation.streams[0]
    if len(invocation.streams) > 1 or len(stream.token_axes) != 2:
        return
    base = record_invocation(invocation)
    x = invocation.arguments[stream.argument]
    if not x.is_floating_point() or not any(each.name == "roll" and each.inputs[0].data.ndim > 2 for each in base):
        return
    if any(isinstance(each, Tensor) and each is not x for each in invocation.arguments.values()):
        return
    shape = [size * (1 + (axis in stream.token_axes)) for axis, size in enumerate(x.shape)]
    rows, columns = (shape[axis] for axis in stream.token_axes)
    larger = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=x.dtype)
    call = replace(invocation, arguments={**invocation.arguments, stream.argument: larger})
    if rows * columns > MOST_TOKENS or record_invocation(call).error:
        return
    for each in judge(call).violations:
        if each.property in AT_ITS_PLACE:
            yield replace(each, message=f"{each.message}, with {stream.argument} {tuple(shape)}")
            return
