"""A model of time series that reads out the last token, and to which the order of all others is unknown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.properties.finding import Finding
from regard.check.properties.positions.unused_classes import WITHOUT
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["unordered_series_findings"]

_OF_A_SERIES = re.compile(r"time[ _-]?series|forecast|stock|price", re.I)
"""In the name of a model, or in its documentation: that its tokens follow one another in time."""
MOVED = 1e-9
"""The smallest change of an output that is one."""
MIN_TOKENS = 3


def unordered_series_findings(invocation: Invocation, found: Collection[Finding]) -> Iterator[Finding]:
    """Tokens before the last one that may stand in any order, in what forecasts from the last one alone.

    Where the last token may be exchanged with another as well, the tokens may be the variables, and not the times.

    Args:
        invocation: the call.
        found: what is known of its steps.
    """
    target, streams = invocation.target, invocation.streams
    of_positions = [each for each in found if each.step == "positions"]
    if not isinstance(target, nn.Module) or [each.role for each in streams] != ["x"] or not of_positions:
        return
    said = documentation_of(target)
    if any(each.kind != "absent" for each in of_positions) or len(streams[0].token_axes) != 1:
        return
    if not _OF_A_SERIES.search(f"{type(target).__name__}\n{said}"):
        return
    if WITHOUT.search("\n".join((said, *comments_of(target)))):
        return
    given, (axis,) = invocation.arguments[streams[0].argument], streams[0].token_axes
    if given.shape[axis] < MIN_TOKENS:
        return
    earlier = given.narrow(axis, 0, given.shape[axis] - 1)
    last, other = given.narrow(axis, -1, 1), given.narrow(axis, 0, 1)
    try:
        before, turned, moved = (
            invocation.outputs(invocation.run({**invocation.arguments, streams[0].argument: each}))[0]
            for each in (
                given,
                torch.cat([earlier.flip(axis), last], axis),
                torch.cat([last, earlier.narrow(axis, 1, earlier.shape[axis] - 1), other], axis),
            )
        )
    except (Failed, RuntimeError):
        return
    if before.ndim < given.ndim and _is_same(before, turned) and not _is_same(before, moved):
        message = "the last token is read out, and all before it may stand in any order: tokens have no positions"
        yield Finding("violation", "positions-without-effect", "positions", message)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).detach().abs().max()) < MOVED
