"""Lengths of a sequence that is made shorter before its attentions: the mask is of the lengths of what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["are_of_more_tokens", "subsampled_length_findings"]

SHORTER = 2
"""How many tokens become one at least: as of a convolution that takes every other frame."""


def are_of_more_tokens(invocation: Invocation, keys: int) -> bool:
    """Whether the lengths that are handed over are of a sequence that has many more tokens than there are keys."""
    tokens = [
        invocation.arguments[each.argument].shape[axis] for each in invocation.streams for axis in each.token_axes
    ]
    return bool(tokens) and min(tokens) >= SHORTER * keys


def subsampled_length_findings(invocation: Invocation, base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A mask that hides the keys behind the lengths of the input, of which the code itself computes those of its keys.

    Args:
        invocation: a call of one sequence, with the number of real tokens of each sample.
        base: its run.
        several: the evidence of its attentions.
    """
    if len(invocation.streams) != 1 or len(invocation.lengths) != 1 or invocation.masks:
        return
    (stream,), (name,) = invocation.streams, invocation.lengths
    if (stream.batch_axis, stream.token_axes) != (0, (1,)):
        return
    samples, tokens = invocation.arguments[stream.argument].shape[:2]
    lengths = invocation.arguments.get(name)
    if not isinstance(lengths, Tensor) or lengths.tolist() != [tokens] * samples:
        return
    for evidence in several:
        count = int(evidence.base.key.token.max()) + 1
        half, few = tokens // 2, count // 2
        if not are_of_more_tokens(invocation, count) or count < 3:
            continue
        run = _with_lengths(invocation, name, half)
        counted = _counted(base, run, samples, count)
        if counted is None or not 0 < counted < count <= half:
            continue
        seen, cut = _seen(evidence, run), _seen(evidence, _with_lengths(invocation, name, few))
        if seen is None or cut is None or int(seen.max()) != count - 1 or int(cut.max()) != few - 1:
            continue
        message = (
            f"{name} is of {tokens} tokens, of which {count} keys are made: with {half} all keys are seen, of which "
            f"{counted} are made of real tokens, as the code computes: it is masked by the lengths of the input"
        )
        line = evidence.base.instance.scores_location
        yield Finding("violation", "mask-of-the-shorter", "mask", message, line, evidence.base.instance.module)
        return


def _with_lengths(invocation: Invocation, name: str, length: int) -> Trace:
    given: dict[str, Any] = {**invocation.arguments, name: torch.full_like(invocation.arguments[name], length)}
    return record_invocation(invocation, given)


def _counted(base: Trace, run: Trace, samples: int, keys: int) -> int | None:
    """What a number of each sample becomes that is the number of keys where all tokens are real; None where none is."""
    if run.error or not run.same_operations(base):
        return None
    for one, other in zip(base, run, strict=True):
        for before, after in zip(one.outputs, other.outputs, strict=True):
            if before.shape == (samples,) and before.data.tolist() == [keys] * samples and after.shape == (samples,):
                return int(after.data[0])
    return None


def _seen(evidence: Evidence, run: Trace) -> Tensor | None:
    """The keys that some query has a weight for."""
    weight = None if run.error else masked_weights(evidence, run)
    if weight is None or not bool(weight.isfinite().all()):
        return None
    seen = evidence.base.key.token[weight > ZERO_WEIGHT]
    return seen if len(seen) else None
