"""Later tokens that reach an earlier output beside the attentions, where every attention hides them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from regard.check.properties.caches.comparison import by_line, line_key
from regard.check.properties.documentation import documentation_of, promises_causal_attention
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of, built_in_pattern
from regard.check.properties.modules.earlier_calls import with_fewer_tokens
from regard.check.properties.modules.surroundings import is_random
from regard.check.properties.token_ids import asking_text
from regard.check.roles.influence import influence_of, record_invocation
from regard.check.target import Invocation, Stream
from regard.check.trace.operation import Trace

__all__ = ["later_token_findings"]

CAUSAL = frozenset({"causal", "causal window"})
THEY_ARE = "its attentions are"
MIN_TOKENS = 3
_FROM_THE_END = re.compile(
    r"\b(?:from|to) the (?:end|last|most recent)\b|\breverse(?:d|s)?\b|\breversal\b|\bbackwards?\b", re.I
)
"""Positions that are counted from the last token on purpose, as of what somebody bought."""
MOVED = 1e-6
"""Of the largest number of the output: what is computed in float32 inside changes by less."""


def later_token_findings(
    invocation: Invocation, base: Trace, several: Sequence[Evidence], *, are_all_seen: bool = True
) -> Iterator[Finding]:
    """What is causal in each of its attentions is so as a whole: no norm, mean or convolution leads around the masks.

    Args:
        invocation: the call.
        base: its run.
        several: all of its attentions.
        are_all_seen: whether each of these was judged; else its documentation has to say that it is causal.
    """
    number = 0 if len(invocation.streams) == 1 else asking_text(invocation, several)
    if number is None or not base.outputs:
        return
    stream = invocation.streams[number]
    if len(stream.token_axes) != 1:
        return
    (axis,), value = stream.token_axes, invocation.arguments[stream.argument]
    count, output = value.shape[axis], base.outputs[0]
    if len(output.shape) <= axis or output.shape[axis] != count or count < MIN_TOKENS:
        return
    if value.is_floating_point() and value.shape[-1] == count:
        return  # its tokens may lie along either axis
    if len(invocation.streams) > 1:  # what asks the other text sees all of it
        several = [each for each in several if bool((each.base.key.stream == number).all())]
    if not several or any(each.is_masked or each.num_tokens not in (0, count) for each in several):
        return
    promised = promises_causal_attention(documentation_of(invocation.target))
    says = _says_causal(several, are_all_seen=are_all_seen, promised=promised)
    if not says:
        return
    influence = influence_of(
        invocation, base, keep=lambda source: source.kind == "token" and source.stream == stream.argument
    )
    if len(influence.runs) != count:
        return
    gaps = torch.stack([(run.outputs[0].data - output.data).abs() for _, run in influence.runs])
    depends = gaps.movedim(axis + 1, 1).flatten(2).amax(-1) > MOVED * output.data.abs().max()  # (tokens, places)
    later = depends.tril(-1)
    if bool(later.any()) and bool(depends.diagonal().all()) and not is_random(invocation):
        token, place = (int(each) for each in later.nonzero()[0])
        message = f"{says} causal, and the output at position {place} changes with the token at {token}, a later one"
        message += ": something else mixes the tokens" if says == THEY_ARE else ""
        yield Finding("violation", "later-tokens-hidden", "mask", message)
    elif says == THEY_ARE and not bool(later.any()) and not is_random(invocation):
        yield from _by_later_tokens(invocation, base, several, stream)


def _says_causal(several: Sequence[Evidence], *, are_all_seen: bool, promised: bool) -> str:
    """What shows that no output is of a later token: the masks, or words where keys are of several tokens; else empty.

    Masks of such keys are none that is known, as where a convolution takes them from later tokens: the code hides
    some of them by itself, and its caller need not.
    """
    if are_all_seen and all(each.base.whole for each in several):
        patterns = {built_in_pattern(allowed_of(each)[0, 0])[0] for each in several}
        return THEY_ARE if patterns <= CAUSAL else ""
    is_promised = all(each.is_documented_causal for each in several)
    if promised and not is_promised:
        masks = [allowed_of(each)[0, 0] for each in several]
        is_promised = all(built_in_pattern(each)[0] == "unknown" and not bool(each.all()) for each in masks)
    return "its documentation says that it is" if is_promised else ""


def _by_later_tokens(
    invocation: Invocation, base: Trace, several: Sequence[Evidence], stream: Stream
) -> Iterator[Finding]:
    """Queries and outputs of what is causal that are others where one token less comes after them."""
    (axis,) = stream.token_axes
    others = {each.argument: invocation.arguments[each.argument] for each in invocation.streams if each is not stream}
    fewer = with_fewer_tokens(invocation)
    if fewer is None or any(_FROM_THE_END.search(each.code) for each in several):
        return
    count = invocation.arguments[stream.argument].shape[axis] - 1
    run = record_invocation(invocation, {**fewer[1], **others}, lines=True)  # the other text has all of its tokens
    if run.error or run.outputs[0].data.ndim <= axis or run.outputs[0].shape[axis] != count:
        return
    whole, part = base.outputs[0].data.narrow(axis, 0, count), run.outputs[0].data
    if whole.shape != part.shape or float((whole - part).abs().max()) <= MOVED * float(whole.abs().max()):
        return
    for product in (each for evidence in several for each in evidence.base.instance.scores):
        one, two = (by_line(each)[line_key(product.operation)] for each in (base, run))
        for whole, part in ((a.data, b.data) for a, b in zip(one[0].inputs, two[0].inputs, strict=False)):
            axes = [at for at, sizes in enumerate(zip(whole.shape, part.shape, strict=False)) if len(set(sizes)) > 1]
            if whole.ndim != part.ndim or len(axes) != 1 or part.shape[axes[0]] != count:
                continue
            rows = (each.movedim(axes[0], 0)[:count].flatten(1) for each in (whole, part))
            mine, other = map(torch.nn.functional.normalize, rows)  # a scale by the number of tokens is no position
            if float((mine - other).abs().max()) > MOVED:
                message = (
                    f"of {count + 1} tokens the first {count} have other queries and keys than of {count}: their "
                    "positions hang on how many come later"
                )
                yield Finding("violation", "positions-from-the-start", "positions", message, product.operation.location)
                return
