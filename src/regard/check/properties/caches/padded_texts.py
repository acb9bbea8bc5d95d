"""Texts that are padded in front, read token by token: a cache knows which of its places hold padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.target.cache_runs import CachedCall, Part, masks_left_out
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed

__all__ = ["padded_text_findings"]

SAME = 1e-9
"""Of the largest number of an output."""
PADDED = 1
"""Tokens in front of the first text that are padding."""


def padded_text_findings(call: CachedCall, cuts: list[Part]) -> Iterator[Finding]:
    """A cache that is right, and is not where a mask says that a text begins later than the others of its batch.

    Only a mask that the call without a cache reads in this way is handed over: padding changes nothing behind it. With
    a cache it has a column for each token so far, as attention_mask has.

    Args:
        call: with its cache, right without a mask.
        cuts: the parts that it is given.
    """
    if len(call.invocation.streams) != 1:
        return
    (stream,) = call.invocation.streams
    given = call.invocation.arguments[stream.argument]
    if stream.batch_axis != 0 or stream.token_axes != (1,) or given.shape[0] < 2 or call.from_first or call.mask:
        return
    shape = (given.shape[0], given.shape[1])
    for name in masks_left_out(call.invocation):
        for dtype in (torch.long, torch.bool):
            mask = torch.ones(shape, dtype=dtype)
            mask[0, :PADDED] = 0
            masked = replace(
                call,
                invocation=replace(call.invocation, arguments={**call.invocation.arguments, name: mask}),
            )
            try:
                if not _is_read_as_padding(call, masked, given.shape[1]):
                    continue
                found = _first_other(masked, cuts)
            except (Failed, RuntimeError, IndexError, ValueError, TypeError):
                continue
            if found is not None:
                token, gap = found
                message = (
                    f"where {name} says that a text begins with padding, token {token} has an output that differs by "
                    f"up to {gap:.2g} {call.form.name} from that of all at once: its mask, or its positions, do not "
                    "count the padding in the cache as they do without one"
                )
                yield Finding("violation", "cache-mask", "mask", message)
            return


def _is_read_as_padding(call: CachedCall, masked: CachedCall, tokens: int) -> bool:
    """Whether what the mask hides changes nothing in its text, and would without the mask."""
    (stream,) = call.invocation.streams
    other = call.invocation.arguments[stream.argument].clone()
    other[:, :PADDED] = other_tokens(call.invocation)[stream.argument][:, :PADDED]

    def changed(each: CachedCall) -> bool:
        moved = replace(
            each,
            invocation=replace(each.invocation, arguments={**each.invocation.arguments, stream.argument: other}),
        )
        one, two = (_output(side, side.whole(tokens))[0, PADDED:] for side in (each, moved))
        return float((one - two).abs().max()) > SAME * max(1.0, float(one.abs().max()))

    return not changed(masked) and changed(call)


def _first_other(call: CachedCall, cuts: list[Part]) -> tuple[int, float] | None:
    """The first token, which is no padding, with another output in its part than in the whole; and how far off it is.

    Raises:
        Failed: it raised, or its output has no axis of tokens.
    """
    for (first, end), (result, _) in zip(cuts, call.parts(cuts), strict=True):
        part, whole = _output(call, result), _output(call, call.whole(end))
        if whole.ndim < 3 or (whole.shape[1], part.shape[1]) != (end, end - first):
            raise Failed("the outputs of a part and of the whole do not fit")
        for token in range(max(first, PADDED), end):
            gap = float((part[:, token - first] - whole[:, token]).abs().max())
            if not gap <= SAME * max(1.0, float(whole[:, PADDED:].abs().max())):
                return token, gap
    return None


def _output(call: CachedCall, result: object) -> Tensor:
    return call.invocation.outputs(result)[0].detach()
