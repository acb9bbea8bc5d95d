"""Rows of numbers that were taken for tokens, and are samples: each of their columns is a token, as of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from regard.check.properties.analysis import Analysis
from regard.check.target import Invocation, Stream

__all__ = ["by_columns"]

SAMPLES = 2
OF_POSITIONS = "positions"
"""The step that is not judged: each column has a vector of its own, which its number is multiplied by."""


def by_columns(invocation: Invocation, analyze: Callable[[Invocation], Analysis]) -> Analysis | None:
    """What is found where the rows of the only input are samples, and its columns tokens; None where it is not right.

    Code that mixes the channels of a token has no score of two columns, so it is not right in this way.

    Args:
        invocation: a call in which no query meets a key of another token.
        analyze: asks the properties of another call.
    """
    if len(invocation.streams) != 1:
        return None
    stream = invocation.streams[0]
    value = invocation.arguments[stream.argument]
    is_of_rows = isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()
    if stream.batch_axis is not None or not is_of_rows or len(value) < SAMPLES:
        return None
    columns = Stream(stream.argument, stream.role, 0, (1,))
    given = {**invocation.arguments, stream.argument: value[:SAMPLES]}
    found = analyze(replace(invocation, arguments=given, streams=[columns], square=False))
    found.findings = [each for each in found.findings if each.kind != "violation" or each.step != OF_POSITIONS]
    return found if found.complete and found.has_scores and not found.violations else None
