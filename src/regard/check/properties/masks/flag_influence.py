"""A flag that says causal, of code that can hide later keys only from as many queries: asked by what they change."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.masks.patterns import built_in_pattern
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["flag_by_influence"]


def flag_by_influence(invocation: Invocation, flag: str, line: CodeLocation | None) -> Iterator[Finding]:
    """Whether the keys that change what a query reads are those up to its own position.

    Args:
        invocation: a call with another number of keys than of queries, with which the flag does not run.
        flag: the argument that says causal.
        line: of the scores.
    """
    shorter = _of_equal_lengths(invocation)
    asking = invocation.streams[0]
    if shorter is None:
        return
    given = {**invocation.arguments, **shorter, flag: True}
    before = _rows(invocation, given)
    tokens = shorter[asking.argument].shape[asking.token_axes[0]]
    if before is None or len(before) != tokens:
        return
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    for token in range(tokens):
        changed = {}
        for each in invocation.streams[1:]:
            changed[each.argument] = shorter[each.argument].clone()
            changed[each.argument].select(each.token_axes[0], token).mul_(-0.5)
        after = _rows(invocation, {**given, **changed})
        if after is None:
            return
        seen[:, token] = (after != before).flatten(1).any(1)
    pattern, wrong = built_in_pattern(seen)
    if pattern == "full":
        wrong = f"{flag}=True changes nothing: a query sees later keys"
    if wrong:
        yield Finding("violation", "mask-pattern", "mask", f"with {flag}=True {wrong}", line)
    elif pattern == "causal":
        message = f"{flag}=True: a query reads keys up to its own position, where there are as many keys as queries"
        yield Finding("holds", "mask-flag", "mask", message, line)


def _of_equal_lengths(invocation: Invocation) -> dict[str, Tensor] | None:
    """Its sequences, as long as the shortest of them; None where they are as long as each other, or of no one axis."""
    streams = invocation.streams
    if len(streams) < 2 or any(len(each.token_axes) != 1 for each in streams):
        return None
    values = [invocation.arguments[each.argument] for each in streams]
    lengths = [value.shape[each.token_axes[0]] for each, value in zip(streams, values, strict=True)]
    if len(set(lengths)) == 1 or not all(value.is_floating_point() for value in values):
        return None
    return {
        each.argument: value.narrow(each.token_axes[0], 0, min(lengths)).clone()
        for each, value in zip(streams, values, strict=True)
    }


def _rows(invocation: Invocation, arguments: dict[str, object]) -> Tensor | None:
    """The first output, its tokens first; None where it does not run, or has other axes than the queries."""
    asking = invocation.streams[0]
    try:
        outputs = invocation.outputs(invocation.run(arguments))
    except Failed:
        return None
    if not outputs or outputs[0].ndim <= asking.token_axes[0] or not bool(outputs[0].isfinite().all()):
        return None
    return outputs[0].movedim(asking.token_axes[0], 0)
