"""What shows in calls of more tokens alone: blocks of tokens that are no whole number, and several windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.check.properties.analysis import Analysis
from regard.check.properties.code import code_of
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.properties.other_lengths import with_tokens
from regard.check.properties.outputs.uneven_blocks import uneven_block_findings
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["other_size_findings"]

AT_ITS_PLACE = frozenset({"output-of-the-token", "output-at-its-place"})
MOST_TOKENS = 100
"""Of a picture that is twice as high and twice as wide."""
OF_WINDOWS = 6
"""Axes of a picture that is cut into windows: samples, rows of windows and in these, the same of columns, channels."""
_WINDOW = re.compile(r"w|(?:\w+_)?(?:window|ring|buffer|capacity)(?:_(?:size|len|length))?|(?:max_)?cache_(?:size|len)")
"""What says how many keys are kept."""
_BY_PLACE = re.compile(r"\bsinks?\b|stream(?:ing)?[ _-]?llm|within the (?:cache|window|ring|buffer)", re.I)
"""In code whose positions are those in the cache on purpose (Xiao et al. 2023, "Efficient Streaming LMs")."""
MOST_OF_A_WINDOW = 16
BEYOND = 3
"""Tokens more than a window holds."""


def other_size_findings(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """What calls of other sizes violate.

    Args:
        analysis: of a call without violations.
        judge: what analyzes another call.
    """
    yield from uneven_block_findings(analysis, judge)
    yield from _larger_picture(analysis, judge)
    yield from _beyond_a_window(analysis, judge)


def _beyond_a_window(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """Whether rotary positions are those of the text where it is longer than the window of keys that is kept.

    A ring holds the key of a token in the place of one that is gone: as far as it is not full, both have one number.
    """
    invocation = analysis.invocation
    if len(invocation.streams) > 1 or all(each.property != "rotary" for each in analysis.designs):
        return
    (stream,) = invocation.streams
    if len(stream.token_axes) != 1 or not isinstance(invocation.target, nn.Module):
        return
    if _BY_PLACE.search(code_of(invocation.target)):
        return
    tokens = invocation.tokens_of(stream)
    held = {
        value
        for module in invocation.target.modules()
        for name, value in vars(module).items()
        if type(value) is int and _WINDOW.fullmatch(name) and tokens <= value <= MOST_OF_A_WINDOW
    }
    given = with_tokens(invocation, min(held) + BEYOND - tokens) if held else None
    if given is None:
        return
    call = replace(invocation, arguments=given)
    call.arguments.update(with_fresh_tokens(call))  # else a token comes again
    if record_invocation(call).error:
        return
    for each in judge(call).violations:
        if each.property == "positions-relative":
            yield replace(each, message=f"{each.message}, with {min(held) + BEYOND} tokens and a window of {min(held)}")
            return


def _larger_picture(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """Whether a picture that is rolled, or cut into windows, comes back whole where it is twice as high and as wide.

    A picture of one window may come back by rolling on, since half a window twice is the whole picture; and in whatever
    order windows are joined.
    """
    invocation = analysis.invocation
    stream = invocation.streams[0]
    if len(invocation.streams) > 1 or len(stream.token_axes) != 2:
        return
    base = record_invocation(invocation)
    x = invocation.arguments[stream.argument]
    is_moved = any(
        (each.name == "roll" and each.inputs[0].data.ndim > 2)
        or (each.is_view and each.outputs[0].data.ndim >= OF_WINDOWS)
        for each in base
        if each.inputs and each.outputs
    )
    if not x.is_floating_point() or not is_moved:
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
