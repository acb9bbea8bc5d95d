"""A flag that says causal, of code that can hide later keys only from as many queries: asked by what they change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.masks.patterns import built_in_pattern
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["flag_by_influence", "flag_of_columns"]


def flag_by_influence(invocation: Invocation, flag: str, line: CodeLocation | None) -> Iterator[Finding]:
    """Whether the keys that change what a query reads are those up to its own position.

    Args:
        invocation: a call with another number of keys than of queries, with which the flag does not run.
        flag: the argument that says causal.
        line: of the scores.
    """
    shorter = _of_equal_lengths(invocation)
    if shorter is None:
        return
    keys = {each.argument: each.token_axes[0] for each in invocation.streams[1:]}
    seen = _seen(invocation, {**invocation.arguments, **shorter, flag: True}, invocation.streams[0].token_axes[0], keys)
    if seen is None:
        return
    pattern, wrong = built_in_pattern(seen)
    if pattern == "full":
        wrong = f"{flag}=True changes nothing: a query sees later keys"
    if wrong:
        yield Finding("violation", "mask-pattern", "mask", f"with {flag}=True {wrong}", line)
    elif pattern == "causal":
        message = f"{flag}=True: a query reads keys up to its own position, where there are as many keys as queries"
        yield Finding("holds", "mask-flag", "mask", message, line)


def flag_of_columns(invocation: Invocation, line: CodeLocation | None) -> Iterator[Finding]:
    """Whether a flag that says causal hides later columns of a map whose rows have the same weights.

    Args:
        invocation: a call of one map.
        line: of the scores.
    """
    asking = invocation.streams[0]
    for flag in invocation.causal_flags[:1] if len(invocation.streams) == 1 else ():
        given = {**invocation.arguments, flag: True}
        for axis in asking.token_axes:
            seen = _seen(invocation, given, axis, {asking.argument: axis})
            if seen is None:
                continue
            is_earlier, is_later = bool(seen.tril(-1).any()), bool(seen.triu(1).any())
            if is_later and not is_earlier:
                message = f"{flag}=True hides the earlier columns, not the later ones: it is the wrong way round"
                yield Finding("violation", "mask-pattern", "mask", message, line)
            elif is_earlier and not is_later:
                message = f"{flag}=True: a column reads columns up to its own"
                yield Finding("holds", "mask-flag", "mask", message, line)


def _seen(invocation: Invocation, given: dict[str, Any], axis: int, keys: Mapping[str, int]) -> Tensor | None:
    """(queries, keys): which keys change what is read; None where it does not run, or returns no row for each.

    Args:
        invocation: the call.
        given: its arguments, with as many queries as keys.
        axis: of the output and of the first sequence, that of the queries.
        keys: for each argument that holds keys, their axis.
    """
    asking = invocation.streams[0]
    tokens = given[asking.argument].shape[axis]
    before = _rows(invocation, given, axis)
    if before is None or len(before) != tokens:
        return None
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    for token in range(tokens):
        changed = {}
        for name, of_keys in keys.items():
            changed[name] = given[name].clone()
            changed[name].select(of_keys, token).mul_(-0.5)
        after = _rows(invocation, {**given, **changed}, axis)
        if after is None:
            return None
        seen[:, token] = (after != before).flatten(1).any(1)
    return seen


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


def _rows(invocation: Invocation, arguments: dict[str, Any], axis: int) -> Tensor | None:
    """The first output, its tokens first; None where it does not run, or has other axes than the queries."""
    try:
        outputs = invocation.outputs(invocation.run(arguments))
    except Failed:
        return None
    if not outputs or outputs[0].ndim <= axis or not bool(outputs[0].isfinite().all()):
        return None
    return outputs[0].movedim(axis, 0)
