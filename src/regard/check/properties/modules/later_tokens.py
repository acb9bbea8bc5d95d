"""Later tokens that reach an earlier output beside the attentions, where every attention hides them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of, built_in_pattern
from regard.check.properties.modules.surroundings import is_random
from regard.check.roles.influence import influence_of
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["later_token_findings"]

CAUSAL = frozenset({"causal", "causal window"})
MIN_TOKENS = 3
MOVED = 1e-6
"""Of the largest number of the output: what is computed in float32 inside changes by less."""


def later_token_findings(invocation: Invocation, base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """What is causal in each of its attentions is so as a whole: no norm, mean or convolution leads around the masks.

    Args:
        invocation: the call.
        base: its run.
        several: all of its attentions.
    """
    stream = invocation.streams[0]
    if len(invocation.streams) != 1 or len(stream.token_axes) != 1 or not base.outputs or not several:
        return
    (axis,), value = stream.token_axes, invocation.arguments[stream.argument]
    count, output = value.shape[axis], base.outputs[0]
    if len(output.shape) <= axis or output.shape[axis] != count or count < MIN_TOKENS or value.shape[-1] == count:
        return
    if any(not each.base.whole or each.is_masked or each.num_tokens not in (0, count) for each in several):
        return
    if any(built_in_pattern(allowed_of(each)[0, 0])[0] not in CAUSAL for each in several):
        return
    influence = influence_of(invocation, base, keep=lambda source: source.kind == "token")
    if len(influence.runs) != count:
        return
    gaps = torch.stack([(run.outputs[0].data - output.data).abs() for _, run in influence.runs])
    depends = gaps.movedim(axis + 1, 1).flatten(2).amax(-1) > MOVED * output.data.abs().max()  # (tokens, places)
    later = depends.tril(-1)
    if bool(later.any()) and bool(depends.diagonal().all()) and not is_random(invocation):
        token, place = (int(each) for each in later.nonzero()[0])
        message = f"its attentions are causal, and the output at position {place} changes with the token at {token}, "
        message += "a later one: something else mixes the tokens"
        yield Finding("violation", "later-tokens-hidden", "mask", message)
