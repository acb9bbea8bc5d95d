"""A memory of the text before: beside it a token sees the tokens of its own segment that it sees without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from regard.check.properties.caches.handed_over import optional_memories
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.preparation import drawn_like

__all__ = ["memory_mask_findings"]

SAME = 1e-9
"""Of the largest number of an output."""
MIN_TOKENS = 2


def memory_mask_findings(invocation: Invocation) -> Iterator[Finding]:
    """A segment whose last token hangs on its first one, and no longer where what was returned before is handed over.

    Dai et al. 2019, "Transformer-XL", section 3.2: keys are those of the memory and of the segment; a causal mask of
    them begins behind the memory. What is returned by another name, or made of nothing that was read, is no memory.

    Args:
        invocation: a call without a memory, of one sequence of vectors.
    """
    streams, names = invocation.streams, optional_memories(invocation)
    if len(streams) != 1 or len(streams[0].token_axes) != 1 or invocation.arrays or len(names) != 1:
        return
    (axis,), name = streams[0].token_axes, streams[0].argument
    given = invocation.arguments[name]
    if not isinstance(invocation.target, nn.Module) or not given.is_floating_point() or given.shape[axis] < MIN_TOKENS:
        return
    try:
        returned = invocation.run({**invocation.arguments, name: drawn_like(given, seed=51)})
        other = invocation.run({**invocation.arguments, name: drawn_like(given, seed=52)})
        if not _is_read(invocation, {}, axis):
            return
        for memory, another in zip(_memories(returned, names[0]), _memories(other, names[0]), strict=True):
            first = {names[0]: memory}
            if _is_moved(invocation, first, {names[0]: another}) and not _is_read(invocation, first, axis):
                message = (
                    f"the last token of {name} reads its first one, and does not where the {names[0]} that a call "
                    "before it returned is handed over: it sees no more than that"
                )
                yield Finding("violation", "memory-beside-tokens", "mask", message)
                return
    except Exception:  # the code's own may raise anything
        return


def _memories(returned: Any, name: str) -> list[Any]:
    """What a call returned that may be the memory for the next one."""
    if isinstance(returned, Mapping):
        return [returned[name]] if name in returned else []
    return list(returned[1:2]) if isinstance(returned, tuple | list) else []


def _output(invocation: Invocation, told: Mapping[str, Any]) -> Tensor:
    return invocation.outputs(invocation.run({**invocation.arguments, **told}))[0].detach()


def _differs(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) > SAME * max(1.0, float(one.abs().max()))


def _is_moved(invocation: Invocation, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return _differs(_output(invocation, one), _output(invocation, other))


def _is_read(invocation: Invocation, memory: Mapping[str, Any], axis: int) -> bool:
    """Whether the output of the last token hangs on the first one."""
    name = invocation.streams[0].argument
    given = invocation.arguments[name]
    changed = given.clone()
    changed.select(axis, 0).copy_(drawn_like(given, seed=53).select(axis, 0))
    outputs = [_output(invocation, {**memory, name: each}) for each in (given, changed)]
    if any(each.shape[axis] != given.shape[axis] for each in outputs):
        raise ValueError("the output has other tokens")
    return _differs(*(each.select(axis, -1) for each in outputs))
