"""Attentions of one file that take the same arguments: one may stand for another, so their outputs have one order."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.target.classes import classes_beside
from regard.check.target.preparation import prepare

__all__ = ["sibling_findings"]

MIN_ARGUMENTS = 4
"""Queries, keys, values and one more: fewer are the same by accident."""


def sibling_findings(invocation: Invocation) -> Iterator[Finding]:
    """Heads and tokens exchanged in the output, where another class for the same call leaves them in their places.

    By itself either order is right: who calls it knows. Who takes either class reads both in one order.

    Args:
        invocation: a call of queries, keys and values with axes of heads and of tokens.
    """
    target, streams = invocation.target, invocation.streams
    asking = next((each for each in streams if each.role == "q"), None)
    if not isinstance(target, nn.Module) or asking is None or asking.head_axis is None or len(asking.token_axes) != 1:
        return
    try:
        mine = [*invocation.outputs(invocation.run())[0].shape]
    except (Failed, IndexError):
        return
    queries, heads, (tokens,) = list(invocation.arguments[asking.argument].shape), asking.head_axis, asking.token_axes
    turned = list(queries)
    turned[heads], turned[tokens] = queries[tokens], queries[heads]
    if mine[:-1] != turned[:-1] or mine[:-1] == queries[:-1]:
        return
    for kind in classes_beside(type(target)):
        if not _stands_for(kind, type(target)):
            continue
        try:
            other = kind()
            prepare(other, seed=1)
            its = [*invocation.outputs(invocation.run(target=other))[0].shape]
        except Exception:  # it takes another call all the same
            continue
        if its[:-1] == queries[:-1]:
            message = (
                f"the output has its heads along axis {tokens} and its tokens along axis {heads}, the other way round "
                f"than the queries; {kind.__name__}, which takes the same arguments, leaves both in their places"
            )
            yield Finding("violation", "output-axes", "heads joined", message)
            return


def _stands_for(kind: type, other: type) -> bool:
    """Whether a module can be made without arguments, and is made and called by the same names as another one."""
    if not issubclass(kind, nn.Module):
        return False
    made, called = (
        [[*inspect.signature(getattr(each, name)).parameters.items()][1:] for each in (kind, other)]
        for name in ("__init__", "forward")
    )
    names = [[[name for name, _ in parameters] for parameters in both] for both in (made, called)]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    is_free = all(each.default is not each.empty or each.kind in variadic for _, each in made[0])
    return is_free and all(one == two for one, two in names) and len(called[0]) >= MIN_ARGUMENTS
