"""Padding that a convolution reads before it is zeroed: it reaches real tokens beside the attentions, which hide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["convolved_padding_findings"]

PADDED = 2
"""Tokens at the end that are padding."""
FEWEST_TOKENS = 2
ZEROING = frozenset({"masked_fill", "mul", "where"})
"""Operations that may set padding to zero."""
MOVED = 1e-6
"""Of the largest number: what is computed in float32 inside changes by less."""


def convolved_padding_findings(invocation: Invocation) -> Iterator[Finding]:
    """Padding that is zeroed behind a convolution over tokens, and not before it, so that real tokens change with it.

    The code says by its zeros that padding shall be left out. The inputs are padded with zeros: what arrives at the
    convolution was made by biases and norms.

    Args:
        invocation: a call of one sequence with the number of real tokens of each sample.
    """
    runs = _padded_and_cut(invocation)
    if runs is None:
        return
    padded, cut = runs
    if padded.error or cut.error or not padded.outputs or not cut.outputs:
        return
    whole, part = padded.outputs[0].data, cut.outputs[0].data
    tokens = invocation.arguments[invocation.streams[0].argument].shape[1]
    first = tokens - PADDED
    if whole.ndim != 3 or whole.shape[1] != tokens or whole[:, :first].shape != part.shape:
        return
    gaps = (whole[:, :first] - part).abs().amax((0, 2))
    if float(gaps.max()) <= MOVED * float(part.abs().max()):
        return
    for convolution in padded:
        if _reads_padding(convolution, tokens) and _is_zeroed_behind(convolution, padded):
            message = (
                f"padding is zeroed behind a convolution over the tokens and not before it: token {int(gaps.argmax())} "
                f"of {first} changes by {float(gaps.max()):.3g} where {PADDED} tokens of padding follow"
            )
            location, module = convolution.location, convolution.module
            yield Finding("violation", "padding-before-convolutions", "mask", message, location, module)
            return


def _padded_and_cut(invocation: Invocation) -> tuple[Trace, Trace] | None:
    """A run with padding at the end of all samples, and one without it; None where more than lengths would change."""
    if len(invocation.streams) != 1 or len(invocation.lengths) != 1 or invocation.masks:
        return None
    (stream,), (name,) = invocation.streams, invocation.lengths
    value, lengths = invocation.arguments[stream.argument], invocation.arguments.get(name)
    if (stream.batch_axis, stream.token_axes) != (0, (1,)) or not value.is_floating_point() or value.ndim != 3:
        return None
    samples, tokens = value.shape[:2]
    if not isinstance(lengths, Tensor) or lengths.tolist() != [tokens] * samples or tokens < FEWEST_TOKENS + PADDED:
        return None
    cut = value[:, : tokens - PADDED]
    shorter: dict[str, Any] = {**invocation.arguments, name: torch.full_like(lengths, tokens - PADDED)}
    of_both = (torch.cat([cut, torch.zeros_like(value[:, :PADDED])], 1), cut.clone())
    padded, alone = (record_invocation(invocation, {**shorter, stream.argument: each}, lines=True) for each in of_both)
    return padded, alone


def _reads_padding(operation: Operation, tokens: int) -> bool:
    """Whether it is a convolution over several tokens at once, and what it takes of padding is not zero."""
    if operation.name != "convolution" or len(operation.inputs) < 2:
        return False
    given, weight = (each.data for each in operation.inputs[:2])
    is_over_tokens = given.ndim == 3 and given.shape[2] == tokens and weight.shape[-1] > 1
    return is_over_tokens and bool(given[..., tokens - PADDED :].any())


def _is_zeroed_behind(convolution: Operation, trace: Trace) -> bool:
    """Whether an operation zeroes the padding of what a convolution returned, and nothing else of it."""
    made = convolution.outputs[0]
    for each in trace.operations[convolution.index + 1 :]:
        if any(one.storage == made.storage for one in each.inputs) and each.outputs:
            result = each.outputs[0].data
            if result.ndim != 3 or each.name.rstrip("_") not in ZEROING:
                continue
            padding = (result if result.shape == made.shape else result.mT)[..., -PADDED:]
            if not bool(padding.any()) and bool(result.any()):
                return True
    return False
