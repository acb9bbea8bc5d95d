"""Beams that go on: what is kept of each beam is that of the beam it comes from."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.caches.causes import remembering_line
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.cache_forms import CacheNames
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["beam_findings"]

TOLERANCE = 1e-9
"""Of the largest number of an output."""


def beam_findings(invocation: Invocation, names: CacheNames) -> Finding | None:
    """A call that is told of which beams its cache goes on, and reads what was kept of others.

    What the first call kept of the beams in another order, and what it keeps of them when they are handed over in that
    order, are the same.

    Args:
        invocation: the call, which hands no order over.
        names: of its cache.
    """
    axes = {each.argument: each.batch_axis for each in invocation.streams}
    sizes = {invocation.arguments[name].shape[axis] for name, axis in axes.items() if axis is not None}
    if not names.beams or None in axes.values() or len(sizes) != 1 or (count := sizes.pop()) < 2:
        return None
    order = torch.arange(count).roll(1)
    argument = names.beams[0]

    def ordered(tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: each.index_select(axes[name] or 0, order) for name, each in tokens.items()}

    def second(first: dict[str, Tensor], then: dict[str, Tensor], **told: Tensor) -> Tensor:
        target = copied(invocation.target)
        invocation.run({**invocation.arguments, **first}, target=target)
        result = invocation.run({**invocation.arguments, **then, **told}, target=target)
        return invocation.outputs(result)[0].detach()

    before, after = other_tokens(invocation), {name: invocation.arguments[name] for name in axes}
    try:
        found = second(before, after, **{argument: order})
        wanted = second(ordered(before), after)
        others = [
            second(ordered(before), ordered(after)),
            second(before, after),
        ]  # all in that order; that of later calls
    except (Failed, RuntimeError, IndexError, ValueError):
        return None
    if any(_are_alike(found, each) for each in (wanted, *others)) or found.shape != wanted.shape:
        return None
    gap = float((found - wanted).abs().max())
    message = (
        f"{argument} puts the beams in another order, and the output differs by up to {gap:.2g} from that of the same "
        "beams kept in this order: keys and values are not those of one beam"
    )
    return Finding("violation", "cache-beams", "k", message, remembering_line(invocation))


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(
        (one - other).abs().max() <= TOLERANCE * max(1.0, float(other.abs().max()))
    )
