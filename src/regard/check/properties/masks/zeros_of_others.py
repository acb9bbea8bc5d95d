"""Masks that code makes itself of tokens that are zeros: padding hides keys in its own sample, and in no other one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation, Stream
from regard.check.trace.operation import Trace

__all__ = ["zeros_of_others_findings"]

SAME = 1e-9
"""More than rounding may change an output."""
COMPARISONS = frozenset({"eq", "ne", "gt", "lt", "ge", "le", "sign", "count_nonzero", "nonzero", "logical_not"})
"""Operations by which code finds zeros."""


def zeros_of_others_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Outputs of other samples that change where tokens of the first one become zeros, and with nothing else.

    As where heads stand outside of the samples in one axis, and a mask of the keys is repeated the other way round.

    Args:
        invocation: a call of several samples.
        several: the evidence of its attentions.
    """
    streams = [each for each in invocation.streams if each.batch_axis is not None and len(each.token_axes) == 1]
    given = {each.argument: invocation.arguments[each.argument] for each in streams}
    are_vectors = all(each.is_floating_point() for each in given.values())
    if not several or not streams or len(streams) < len(invocation.streams) or not are_vectors:
        return
    base = several[0].base.instance.run.trace
    if not any(each.name.rstrip("_") in COMPARISONS for each in base):
        return
    for number, hides in ((0.5, False), (0.0, True)):
        changed = {each.argument: _last_token_of_the_first(given[each.argument], each, number) for each in streams}
        run = record_invocation(invocation, {**invocation.arguments, **changed})
        others = None if run.error else _of_others(base, run, streams[0])
        if others is None or bool(others) is not hides:
            return
    message = (
        "where a token of sample 0 is zeros, so that it is taken for padding, outputs of other samples change: the "
        f"mask that is made of it hides keys of these ({others} of their numbers are others)"
    )
    yield Finding("violation", "mask-of-its-sample", "mask", message, several[0].base.instance.softmaxes[0].location)


def _last_token_of_the_first(tokens: Tensor, stream: Stream, number: float) -> Tensor:
    """The same with a number in all channels of one token."""
    changed = tokens.clone()
    changed.movedim((stream.batch_axis or 0, stream.token_axes[0]), (0, 1))[0, -1] = number
    return changed


def _of_others(base: Trace, run: Trace, stream: Stream) -> int | None:
    """How many numbers of other samples changed in what is returned; None where samples are not found in it."""
    axis = stream.batch_axis or 0
    samples = base.arguments[stream.argument].shape[axis] if stream.argument in base.arguments else 0
    pairs = [(one.data, two.data) for one, two in zip(base.outputs, run.outputs, strict=False)]
    found = [
        int(((one - two).abs() > SAME).movedim(axis, 0)[1:].sum())
        for one, two in pairs
        if one.is_floating_point() and one.shape == two.shape and one.ndim > axis and one.shape[axis] == samples > 1
        if not bool(torch.isnan(one).any())
    ]
    return sum(found) if found else None
