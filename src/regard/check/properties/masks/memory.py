"""A mask holds for the call that it is handed to: what an object keeps of it must not reach the next call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.influence import differs
from regard.check.target import Failed, Invocation
from regard.check.target.preparation import copied, modules_in

__all__ = ["mask_memory_findings"]


def mask_memory_findings(invocation: Invocation, name: str, before: Any, value: Any) -> Iterator[Finding]:
    """Whether one object gives the same after a call with another mask as after a call with the same one.

    Only the mask of the first call differs, so that an object that keeps keys and values is not taken for one that
    keeps its mask.

    Args:
        invocation: the call.
        name: the argument: a mask, a flag or lengths.
        before: what it is in the first call.
        value: what it is afterwards.
    """
    if not modules_in(invocation.target):
        return
    for one, other in ((before, value), (value, before)):  # what is kept of a mask may be what it blocks
        try:
            after_other, after_same = (_second(invocation, name, first, other) for first in (one, other))
        except Failed:
            return  # a cache that is full, or sizes that it does not take twice
        pairs = [(a, b) for a, b in zip(after_other, after_same, strict=False) if a.shape == b.shape]
        changed, moved = sum(int(differs(a, b).sum()) for a, b in pairs), sum(a.numel() for a, _ in pairs)
        if changed:
            message = (
                f"{changed} of {moved} outputs of a second call hang on the {name} of the first: the object keeps what "
                "its mask was"
            )
            yield Finding("violation", "mask-of-its-call", "mask", message)
            return


def _second(invocation: Invocation, name: str, first: Any, value: Any) -> list[Tensor]:
    """What an object returns in its second call."""
    target = copied(invocation.target)
    invocation.run({**invocation.arguments, name: first}, target=target)
    return invocation.outputs(invocation.run({**invocation.arguments, name: value}, target=target))
