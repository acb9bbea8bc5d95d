"""Series of which a documentation says that each is predicted from its own past alone: no other one changes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from regard.check.properties.code import documentation_of_file, sentences_of
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["channels_apart_findings"]

_APART = re.compile(
    r"\bchannel[- ]independen(?:ce|t|tly)\b"
    r"|\b(?:each|every) (?:channel|variable|variate|series) is (?:forecast|predicted|modell?ed)\w*\b[^.;]*"
    r"\b(?:alone|independently|separately|by itself)\b",
    re.I,
)
_CHOSEN = re.compile(
    r"\b(?:if|when|where|whether|optional(?:ly)?|unless|or|not|no|may|can|until|before|then|first)\b|[=?]", re.I
)
"""What makes of a promise a choice, or one of a part of what is done."""
_TOGETHER = re.compile(
    r"\b(?:across|between|among|inter|cross)[- ](?:the |all |different )?(?:channel|variable|variate|series)"
    r"|correlation|(?:multi)?variate (?:attention|tokens?)"
    r"|channel[- ](?:mix|depend|attention|wise attention)|\bmix\w* (?:the )?channels",
    re.I,
)
"""That channels meet somewhere, wherever it is said."""
FEWEST = 2
"""Channels, of which one may have an influence on another."""


def channels_apart_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """A channel that another one changes, though each is predicted from its own past by the documentation.

    Nie et al. 2023, "A Time Series is Worth 64 Words": the channels of a series are samples to the model.

    Args:
        invocation: a call of one sequence of vectors, whose numbers are the channels.
        base: its run.
    """
    if len(invocation.streams) != 1 or not base.outputs:
        return
    (stream,) = invocation.streams
    given, output = invocation.arguments[stream.argument], base.outputs[0].data
    told = f"{documentation_of_file(invocation.target)}\n\n{documentation_of(invocation.target)}"
    promised = any(_APART.search(each) and not _CHOSEN.search(each) for each in sentences_of(told))
    if not promised or _TOGETHER.search(told) or given.ndim != 3 or not given.is_floating_point():
        return
    if stream.batch_axis is None or len(stream.token_axes) != 1 or output.ndim != 3:
        return
    (axis,) = {0, 1, 2} - {stream.batch_axis, *stream.token_axes}
    channels = given.shape[axis]
    if channels < FEWEST or output.shape[axis] != channels or output.shape[stream.batch_axis] != len(given):
        return
    for channel in range(channels):
        changed = given.clone()
        generator = torch.Generator().manual_seed(channel)
        one = changed.select(axis, channel)
        one += torch.randn(one.shape, generator=generator, dtype=given.dtype)
        run = record_invocation(invocation, {**invocation.arguments, stream.argument: changed})
        if run.error or not run.outputs or run.outputs[0].shape != base.outputs[0].shape:
            return
        moved = differs(output, run.outputs[0].data).movedim(axis, 0).flatten(1).any(1)
        moved[channel] = False
        if bool(moved.any()):
            other = int(moved.nonzero()[0])
            message = (
                f"its documentation says that each channel is predicted from its own past; channel {channel} of "
                f"{stream.argument} changes what is returned for channel {other}"
            )
            yield Finding("violation", "channels-apart", "output", message)
            return
