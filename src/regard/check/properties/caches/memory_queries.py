"""A memory of the text before: it is asked, and does not ask; queries are those of the new tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.caches.handed_over import optional_memories
from regard.check.properties.finding import Finding
from regard.check.roles.influence import influence_of, record_invocation
from regard.check.roles.instances import AttentionInstance, attentions_of, tagged_run
from regard.check.target import Invocation
from regard.check.target.cache_forms import parameters_of
from regard.check.target.preparation import drawn_like
from regard.check.trace.operation import Trace

__all__ = ["memory_query_findings"]

_MASK = re.compile(r"mask")
TIMES = 2
"""How many segments the memory is of: longer than the tokens, it cannot be that what is returned is the memory's."""


def memory_query_findings(invocation: Invocation) -> Iterator[Finding]:
    """An attention in which no token asks any more once there is a memory, though tokens are asked with it.

    Dai et al. 2019, "Transformer-XL", section 3.2: q = h W_q of the segment alone, k and v of the memory and the
    segment. Queries that are cut from the wrong end of both joined are those of the memory. What is returned has the
    number of the tokens all the same; code that lets its memory ask, as that of Perceiver's latents, returns others.

    Args:
        invocation: a call without a memory, of one sequence of vectors.
    """
    streams, names = invocation.streams, optional_memories(invocation)
    if len(streams) != 1 or len(streams[0].token_axes) != 1 or invocation.arrays or len(names) != 1:
        return
    (axis,), name, memory = streams[0].token_axes, streams[0].argument, names[0]
    given = invocation.arguments[name]
    if not given.is_floating_point():
        return
    before = torch.cat([drawn_like(given, seed=61 + each) for each in range(TIMES)], axis)
    for told in _with_memory(invocation, name, memory, before, int(given.shape[axis])):
        base = record_invocation(invocation, told, lines=True)
        if base.error or not base.outputs or base.outputs[0].shape != given.shape:
            continue
        call = replace(invocation, arguments=told)
        samples = influence_of(call, base, keep=lambda source: source.kind == "sample")
        instances = attentions_of(tagged_run(samples, [name]))
        frozen = {each.operation.index: each.output.data for instance in instances for each in instance.sums}
        others = [
            record_invocation(call, {**told, each: drawn_like(value, seed=67)}, frozen=frozen)
            for each, value in ((name, given), (memory, before))
        ]
        if not instances or any(each.error or not each.same_operations(base) for each in others):
            continue
        yield from _asked_by(instances, base, others, name, memory)
        return


def _asked_by(
    instances: list[AttentionInstance], base: Trace, others: list[Trace], name: str, memory: str
) -> Iterator[Finding]:
    """The attention whose queries are the memory's, where there is no other in which tokens ask."""
    found: list[AttentionInstance] = []
    for instance in instances:
        sides = [
            tuple(any(_is_moved(base, other, pair[side]) for pair in pairs) for other in others)
            for pairs in [[each.places for each in instance.scores]]
            for side in (0, 1)
        ]
        if (True, False) in sides:
            return
        if (False, True) in sides and (True, True) in sides:
            found.append(instance)
    if found:
        message = (
            f"with {memory} before {name}, queries are those of {memory}, and no query is made of {name}: another "
            f"{name} changes keys alone"
        )
        yield Finding("violation", "memory-is-asked", "projections", message, found[0].scores_location, found[0].module)


def _is_moved(base: Trace, other: Trace, place: tuple[int, int]) -> bool:
    one, two = base.taken(place).data, other.taken(place).data
    return one.shape != two.shape or not torch.allclose(one, two, rtol=1e-9, atol=1e-9)


def _with_memory(
    invocation: Invocation, name: str, memory: str, before: Tensor, tokens: int
) -> Iterator[dict[str, Any]]:
    """Calls with a memory: masks that may be left out are, tables of positions are as long as both together."""
    parameters = parameters_of(invocation.target)
    given = {
        each: None if _MASK.search(each) and each in parameters and parameters[each].default is None else value
        for each, value in invocation.arguments.items()
    }
    yield {**given, memory: before}
    for each, value in given.items():
        if each == name or not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        for place in (at for at, size in enumerate(value.shape) if size == tokens):
            longer = [value, *(drawn_like(value, seed=71 + number) for number in range(TIMES))]
            yield {**given, each: torch.cat(longer, place), memory: before}
