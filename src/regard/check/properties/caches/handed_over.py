"""What is handed over beside the tokens: an empty cache, a memory of the text before, the state of a recurrence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.properties.states import goes_on, optional_states
from regard.check.target import Invocation, Stream
from regard.check.target.cache_forms import CacheNames, parameters_of
from regard.check.target.errors import Failed

__all__ = ["empty_cache_findings", "memory_gradient_findings", "optional_memories", "state_findings"]

SAME = 1e-9
"""Of the largest number of an output."""
STEP = 1e-5
"""Of a slope that is measured."""
SLOPE = 1e-4
"""Of the largest slope: how far one by gradients may be from the one that is measured."""
_MEMORY = re.compile(r"(?:\w+_)?mem(?:s|ory|ories)?")
"""Arguments for the states of the text before."""


def empty_cache_findings(invocation: Invocation, names: CacheNames) -> Iterator[Finding]:
    """An empty cache with which one token alone gives something else than without a cache.

    Of several tokens, code may hide none of them from the others where it has a cache, as it is given one at a time.

    Args:
        invocation: a call of several sequences, which hands no cache over.
        names: of its caches.
    """
    asking = next((each for each in invocation.streams if each.role in ("x", "ids", "q")), None)
    if asking is None or len(asking.token_axes) != 1:
        return
    # Keys that are taken for those of another sequence may be too few for the masks of its keys.
    are_sequences = all(len(each.token_axes) == 1 for each in invocation.streams)
    several = [[asking], invocation.streams] if are_sequences else [[asking]]
    for first, name in product(several, names.arguments):
        if invocation.arguments.get(name) is not None:
            continue
        alone = {**invocation.arguments, **_of_first_tokens(invocation, first)}
        try:
            without = _first(invocation, {**alone, name: None}).detach()
            empty = _first(invocation, {**alone, name: {}}).detach()
        except (Failed, IndexError):
            continue
        if without.shape != empty.shape or not bool(without.isfinite().all() and empty.isfinite().all()):
            continue
        gap = float((without - empty).abs().max())
        if gap > SAME * max(1.0, float(without.abs().max())):
            message = (
                f"with {name}={{}}, which holds nothing yet, the output of the first token differs by up to {gap:.2g} "
                "from that without a cache"
            )
            yield Finding("violation", "cache-equals-whole", "output", message)
            return


def _of_first_tokens(invocation: Invocation, streams: Iterable[Stream]) -> dict[str, Tensor]:
    """The first token of some sequences, and of each mask the rows and columns of these tokens."""
    counts = {invocation.tokens_of(each) for each in streams}
    found = {each.argument: invocation.arguments[each.argument].narrow(each.token_axes[0], 0, 1) for each in streams}
    for name in invocation.masks:
        mask = invocation.arguments.get(name)
        for place in (-2, -1):
            if isinstance(mask, Tensor) and mask.ndim >= -place and mask.shape[place] in counts:
                mask = found[name] = mask.narrow(place, 0, 1)
    return found


def optional_memories(invocation: Invocation) -> list[str]:
    """The arguments for states of the text before that a call hands nothing over for."""
    return [
        each
        for each, parameter in parameters_of(invocation.target).items()
        if parameter.default is None and invocation.arguments.get(each) is None and _MEMORY.fullmatch(each)
    ]


def memory_gradient_findings(invocation: Invocation) -> Iterator[Finding]:
    """A memory beside which gradients no longer reach the keys and values of the tokens themselves.

    Dai et al. 2019, "Transformer-XL", section 3.2: the gradient is stopped at the states of the segment before alone.

    Args:
        invocation: a call without a memory, of one sequence of vectors.
    """
    streams = invocation.streams
    if len(streams) != 1 or invocation.arrays or not isinstance(invocation.target, nn.Module):
        return
    name, given = streams[0].argument, invocation.arguments[streams[0].argument]
    optional = optional_memories(invocation)
    if not given.is_floating_point() or len(optional) != 1:
        return
    try:
        returned = invocation.run({**invocation.arguments, name: given.flip(streams[0].token_axes[0])})
        memories = list(returned[1:]) if isinstance(returned, tuple) else []
        for memory in memories:
            told = {**invocation.arguments, optional[0]: memory}
            if not _is_read(invocation, told):
                continue
            if _are_slopes_gradients(invocation, invocation.arguments, name) and not _are_slopes_gradients(
                invocation, told, name
            ):
                message = (
                    f"with {optional[0]} some gradients do not reach {name}, which they reach without it: only the "
                    "memory is to be detached"
                )
                yield Finding("violation", "memory-detached-alone", "k", message)
            return
    except Exception:  # a backward pass of the code's own may raise anything
        return


def state_findings(invocation: Invocation) -> Iterator[Finding]:
    """A later part of a text that, from the state that the first part returned, gives something else than in the whole.

    Where the documentation says that it goes on from there, and no token sees a later one.

    Args:
        invocation: a call without a state, of one sequence of vectors.
    """
    streams = invocation.streams
    if len(streams) != 1 or len(streams[0].token_axes) != 1 or invocation.arrays:
        return
    (axis,), name = streams[0].token_axes, streams[0].argument
    given = invocation.arguments[name]
    optional, tokens = optional_states(invocation), given.shape[axis]
    text = " ".join(documentation_of(invocation.target).split())
    if len(optional) != 1 or not given.is_floating_point() or tokens < 4 or not goes_on(text):
        return
    half = tokens // 2
    parts = given.narrow(axis, 0, half), given.narrow(axis, half, tokens - half)
    try:
        whole = _first(invocation, invocation.arguments).detach()
        returned = invocation.run({**invocation.arguments, name: parts[0]})
        if not isinstance(returned, tuple) or len(returned) != 2 or returned[1] is None:
            return
        first = invocation.outputs(returned)[0].detach()
        last = _first(invocation, {**invocation.arguments, name: parts[1], optional[0]: returned[1]}).detach()
        alone = _first(invocation, {**invocation.arguments, name: parts[1]}).detach()
    except (Failed, IndexError, RuntimeError):
        return
    if whole.ndim <= axis or (whole.shape[axis], first.shape[axis], last.shape[axis]) != (tokens, half, tokens - half):
        return
    least = SAME * max(1.0, float(whole.abs().max()))
    gaps = [
        float((one - other).abs().max())
        for one, other in (
            (whole.narrow(axis, 0, half), first),
            (whole.narrow(axis, half, tokens - half), last),
            (last, alone),
        )
    ]
    if gaps[0] <= least < min(gaps[1:]):
        message = (
            f"of {tokens} tokens the last {tokens - half}, from the {optional[0]} that the first {half} returned, give "
            f"an output that differs by up to {gaps[1]:.2g} from that of all at once"
        )
        yield Finding("violation", "state-goes-on", "output", message)


def _first(invocation: Invocation, given: dict[str, Any]) -> Tensor:
    return invocation.outputs(invocation.run(given))[0]


def _is_read(invocation: Invocation, told: dict[str, Any]) -> bool:
    """Whether a memory is taken, and changes what comes out."""
    try:
        without, beside = (_first(invocation, each).detach() for each in (invocation.arguments, told))
    except (Failed, IndexError):
        return False
    return without.shape == beside.shape and float((without - beside).abs().max()) > SAME


def _are_slopes_gradients(invocation: Invocation, given: dict[str, Any], name: str) -> bool:
    """Whether the slope of the output along a direction of a sequence is what gradients say."""
    generator = torch.Generator().manual_seed(5)
    leaf = given[name].detach().clone().requires_grad_()
    output = _first(invocation, {**given, name: leaf})
    toward = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    direction = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
    if not output.requires_grad:
        return False
    try:
        (gradient,) = torch.autograd.grad((output * toward).sum(), [leaf])
    except Exception:  # a backward pass of the code's own may raise anything: others say so
        return False
    ends = [
        float((_first(invocation, {**given, name: given[name] + sign * STEP * direction}).detach() * toward).sum())
        for sign in (1.0, -1.0)
    ]
    slope, told = (ends[0] - ends[1]) / (2 * STEP), float((gradient * direction).sum())
    return abs(slope - told) <= SLOPE * max(abs(slope), abs(told), 1e-3)
