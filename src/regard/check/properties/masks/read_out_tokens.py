"""The one token of each sample that is read out, by its length: the last one that is no padding."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import modules_in

__all__ = ["read_out_token_findings"]

_LAST = re.compile(r"\[\s*:\s*,\s*-1\s*(?:,\s*:\s*)?\]|\[\s*:\s*,\s*-1\s*:\s*\]")
"""The last token of all, as a line reads it."""
MOVED = 1e-9
MIN_TOKENS = 4


def read_out_token_findings(invocation: Invocation) -> Iterator[Finding]:
    """An output of each sample that hangs on the first token of padding, and on none of those behind it.

    So it is read at the length, and not at the length less 1. Or one that hangs on all of the padding, where a line
    reads the last token of all: that is padding in each shorter sample. What hangs on all of it otherwise is judged
    elsewhere, and a layer that reads from both ends carries padding to all tokens.

    Args:
        invocation: a call of one sequence, with lengths.
    """
    streams = invocation.streams
    if len(streams) != 1 or len(streams[0].token_axes) != 1 or streams[0].batch_axis is None:
        return
    stream, given = streams[0], invocation.arguments[streams[0].argument]
    (axis,), batch = stream.token_axes, stream.batch_axis
    tokens, samples = given.shape[axis], given.shape[batch]
    if tokens < MIN_TOKENS:
        return
    for name in invocation.lengths:
        told = invocation.arguments.get(name)
        if not isinstance(told, Tensor) or told.shape != (samples,):
            continue
        moved = []
        for number in range(1, tokens - 1):
            lengths = torch.full_like(told, number)
            try:
                before = _outputs(invocation, {name: lengths})
                after = [
                    _outputs(invocation, {name: lengths, stream.argument: _changed(invocation, axis, at)})
                    for at in range(number - 1, tokens)
                ]
            except (Failed, RuntimeError, IndexError):
                return
            if before.ndim and tokens in before.shape[1:]:
                return  # it has an output for each token
            if any(each.shape != before.shape or not bool(each.isfinite().all()) for each in after):
                return
            moved.append([bool(((each - before).abs() > MOVED).any()) for each in after])
        if moved and all(each[0] and each[1] and not any(each[2:]) for each in moved):
            message = (
                f"with {name}=n the output hangs on token n, which is the first one of padding, and on none behind it: "
                "the last real token is token n - 1"
            )
            yield Finding("violation", "read-at-the-last-token", "output", message)
            return
        if moved and all(all(each) for each in moved) and _reads_the_last(invocation):
            message = (
                f"with {name}=n the output hangs on all tokens of padding: a line reads the last token of all, "
                f"whatever {name} says; the last real token is token n - 1"
            )
            yield Finding("violation", "read-at-the-last-token", "output", message)
            return


def _reads_the_last(invocation: Invocation) -> bool:
    """Whether a line reads the last of all tokens, and no recurrent layer reads from both ends."""
    modules = [each for owner in modules_in(invocation.target) for each in owner.modules()]
    if any(isinstance(each, nn.RNNBase) and each.bidirectional for each in modules):
        return False
    return _LAST.search(code_of(invocation.target)) is not None


def _outputs(invocation: Invocation, other: dict[str, Tensor]) -> Tensor:
    output: Tensor = invocation.outputs(invocation.run({**invocation.arguments, **other}))[0]
    return output.detach()


def _changed(invocation: Invocation, axis: int, at: int) -> Tensor:
    """The sequence with another token at one place."""
    stream = invocation.streams[0]
    given: Tensor = invocation.arguments[stream.argument].clone()
    generator = torch.Generator().manual_seed(23)
    if given.is_floating_point():
        others = torch.randn(given.shape, generator=generator, dtype=torch.float64).to(given.dtype)
    else:
        others = invocation.other_ids(stream.argument, generator)
    given.select(axis, at).copy_(others.select(axis, at))
    return given
