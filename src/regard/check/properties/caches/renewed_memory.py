"""A memory of the newest states: once it is full, what a segment writes takes the place of what is oldest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.caches.handed_over import optional_memories
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.preparation import drawn_like

__all__ = ["renewed_memory_findings"]

SEGMENTS = 6
"""In which a memory is to be full."""
_NEWEST = re.compile(
    r"\b(?:newest|latest|most recent|rolling|fifo|sliding)\b|\blast\b[^.\n]*\b(?:states?|tokens?|segments?)\b"
    r"|\bsegment[- ]level recurrence|transformer-?xl",
    re.I,
)
"""In the documentation of what has a memory that follows the text."""
_LENGTH = re.compile(r"_?(?:mem(?:ory)?|cache)_?(?:len|length|size)|(?:n|num|max)_mem(?:ory|s)?(?:_len(?:gth)?)?", re.I)


def renewed_memory_findings(invocation: Invocation) -> Iterator[Finding]:
    """A memory that a segment leaves as it is, once it has its size, though it was made of segments; or one of nothing.

    Args:
        invocation: a call without a memory, of one sequence of vectors, of code that keeps the newest states in one.
    """
    streams = invocation.streams
    if len(streams) != 1 or invocation.arrays or not isinstance(invocation.target, nn.Module):
        return
    given, names = invocation.arguments[streams[0].argument], optional_memories(invocation)
    if not given.is_floating_point() or len(names) != 1 or not _NEWEST.search(documentation_of(invocation.target)):
        return
    segments = [drawn_like(given, seed=20 + number) for number in range(SEGMENTS)]
    try:
        memory = _next(invocation, segments[0], {})
        other = _next(invocation, segments[1], {})
        if memory is None or other is None:
            return
        if not memory.numel() and _has_room(invocation.target):
            after = _next(invocation, segments[1], {names[0]: memory})
            if after is not None and not after.numel():
                message = f"what is returned as {names[0]} holds nothing, after a first segment and after a second one"
                yield Finding("violation", "memory-renewed", "k", message)
            return
        if torch.equal(memory, other):
            return  # it is made of nothing that was handed over
        for segment in segments[1:]:
            after = _next(invocation, segment, {names[0]: memory})
            if after is None:
                return
            if after.shape == memory.shape:
                break
            memory = after
        else:
            return
        if torch.equal(after, memory):
            message = (
                f"once {names[0]} has {memory.shape[streams[0].token_axes[0]]} states a segment changes nothing in it: "
                "it keeps the oldest states, not the newest"
            )
            yield Finding("violation", "memory-renewed", "k", message)
    except Exception:  # the code's own may raise anything
        return


def _has_room(module: nn.Module) -> bool:
    """Whether what it was told of the length of its memory is more than nothing."""
    lengths = [value for part in module.modules() for name, value in vars(part).items() if _LENGTH.fullmatch(name)]
    return bool(lengths) and all(isinstance(each, int) and each > 0 for each in lengths)


def _next(invocation: Invocation, segment: Tensor, memory: dict[str, Any]) -> Tensor | None:
    """The memory that a segment leaves; None where it returns no single one."""
    returned = invocation.run({**invocation.arguments, invocation.streams[0].argument: segment, **memory})
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    found = returned[1] if is_pair else None
    return found.detach() if isinstance(found, Tensor) and found.ndim == segment.ndim else None
