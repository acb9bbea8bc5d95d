"""A memory of the text before: among the keys it stands where the positions of the tokens count it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.caches.handed_over import optional_memories
from regard.check.properties.documentation import comments_of, name_and_documentation
from regard.check.properties.finding import Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.preparation import drawn_like

__all__ = ["memory_order_findings"]

SAME = 1e-9
"""Of the largest number of an output."""
MIN_TOKENS = 3
"""Of a segment, so that an order of them shows."""
_OF_SEGMENTS = re.compile(
    r"segment[- ]level recurrence|transformer-?\s?xl"
    r"|(?:previous|preceding|last|earlier) segments?|segments? before|text before",
    re.I,
)
"""Said of a memory that is the text before."""


def memory_order_findings(invocation: Invocation) -> Iterator[Finding]:
    """A memory that is joined behind the tokens, where positions count it as if it stood before them.

    Dai et al. 2019, "Transformer-XL": the second half of a text with the first one as its memory gives what it gives in
    the whole text, under a causal mask. Code that has another order right gives so with some order of the mask's
    columns and of the positions that are handed over.

    Args:
        invocation: a call without a memory, of one sequence of vectors.
    """
    streams = invocation.streams
    if len(streams) != 1 or len(streams[0].token_axes) != 1 or invocation.arrays:
        return
    names, (axis,), name = optional_memories(invocation), streams[0].token_axes, streams[0].argument
    given = invocation.arguments[name]
    half = int(given.shape[axis])
    if len(names) != 1 or not given.is_floating_point() or half < MIN_TOKENS:
        return
    parts = [given, drawn_like(given, seed=31)]
    tables = [
        (each, value, place)
        for each, value in invocation.arguments.items()
        if each != name and isinstance(value, Tensor) and value.is_floating_point()
        for place in [next((at for at, size in enumerate(value.shape) if size == half), None)]
        if place is not None and value.ndim in (2, 3, 4) and each not in invocation.masks
    ][:1]
    said = " ".join([name_and_documentation(invocation.target), *comments_of(invocation.target)])
    if not tables and not _OF_SEGMENTS.search(" ".join(said.split())):
        return
    longer = {each: torch.cat([value, drawn_like(value, seed=32)], place) for each, value, place in tables}
    told = {**invocation.arguments, **longer}
    beside = {**told, name: parts[1], names[0]: parts[0]}
    line = _joined_behind(invocation, beside, name, names[0])
    if line is None:
        return
    rolled = [{}, {each: longer[each].roll(half, place) for each, _, place in tables}]
    for mask in _causal_masks(invocation):
        whole = _output(invocation, {**told, name: torch.cat(parts, axis), **mask(2 * half, 0, False)})
        later = {**told, name: torch.cat([parts[0], drawn_like(given, seed=33)], axis), **mask(2 * half, 0, False)}
        if not _is_causal(whole, _output(invocation, later), axis, half):
            continue
        last, ran = whole.narrow(axis, half, half), list[float]()  # type: ignore[union-attr]
        for order, turned in itertools.product((False, True), rolled):
            found = _output(invocation, {**beside, **turned, **mask(half, half, order)})
            if found is not None and found.shape == last.shape and bool(found.isfinite().all()):
                ran.append(float((found - last).abs().max()))
        if not ran:
            continue
        if min(ran) > SAME * max(1.0, float(last.abs().max())):
            message = (
                f"{names[0]} is joined behind the tokens of {name}, whose positions count it as before them: with the "
                f"first {half} of {2 * half} tokens as {names[0]}, the output of the others differs by at least "
                f"{min(ran):.2g} from that in the whole text, in whatever order the mask has its keys"
            )
            yield Finding("violation", "memory-before-tokens", "positions", message, line)
        return


def _joined_behind(invocation: Invocation, beside: dict[str, Any], name: str, memory: str) -> CodeLocation | None:
    """The line that joins what is made of the memory alone behind what is made of the tokens alone; else None."""
    run = record_invocation(invocation, beside, lines=True)
    if run.error or not {name, memory} <= {*run.arguments}:
        return None
    return next(
        (
            each.location
            for each in run
            if each.name == "cat" and len(each.inputs) == 2
            for one, other in [each.inputs]
            if _is_of(run, one, name, memory) and _is_of(run, other, memory, name)
        ),
        None,
    )


def _is_of(run: Any, record: Any, of: str, not_of: str) -> bool:
    made, others = (run.made_of([run.arguments[each].storage]) for each in (of, not_of))
    return record.storage in made and record.storage not in others


def _output(invocation: Invocation, told: dict[str, Any]) -> Tensor | None:
    try:
        return invocation.outputs(invocation.run(told))[0].detach()
    except Exception:  # the code's own may raise anything
        return None


def _is_causal(whole: Tensor | None, later: Tensor | None, axis: int, half: int) -> bool:
    """Whether another second half changes the output of that half alone."""
    if whole is None or later is None or whole.shape != later.shape or whole.ndim <= axis:
        return False
    if whole.shape[axis] != 2 * half or not bool(whole.isfinite().all()):
        return False
    apart = (whole - later).abs() > SAME
    return bool(apart.narrow(axis, half, half).any()) and not bool(apart.narrow(axis, 0, half).any())


Mask = Callable[[int, int, bool], dict[str, Any]]


def _causal_masks(invocation: Invocation) -> Iterator[Mask]:
    """Ways to hand over a causal mask: of so many queries, so many keys before them, these in front or behind."""
    if not invocation.masks:
        yield lambda queries, before, behind: {}
        return
    name = invocation.masks[0]
    for shape, kind in itertools.product(((), (-1,), (0,), (0, 0)), ("blocked", "allowed", "added")):

        def mask(
            queries: int, before: int, behind: bool, shape: tuple[int, ...] = shape, kind: str = kind
        ) -> dict[str, Any]:
            blocked = torch.ones(queries, queries + before, dtype=torch.bool).triu(1 + before)
            blocked = blocked.roll(queries, 1) if behind else blocked
            for place in shape:
                blocked = blocked.unsqueeze(place)
            if kind == "added":
                return {name: torch.zeros(blocked.shape, dtype=torch.float64).masked_fill(blocked, float("-inf"))}
            return {name: blocked if kind == "blocked" else ~blocked}

        yield mask
