"""Queries, or keys, times learned vectors that are added to the scores: one vector for each distance."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks import ZERO_WEIGHT
from regard.check.roles.contractions import Contraction
from regard.check.target import Invocation

__all__ = ["relative_logit_findings"]

SAME = 1e-8


def relative_logit_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether these vectors depend on the distance of query and key alone, shown by tokens that are all alike.

    Args:
        invocation: the call.
        evidence: of the attention.
    """
    run = evidence.base.instance.run
    learned: list[Contraction] = [
        each for each in evidence.base.instance.added if not run.depends >= {each.left_place, each.right_place}
    ]
    if not learned:
        return
    line = learned[0].operation.location
    table = evidence.equal
    if table is None:
        message = "learned vectors are added to the scores: not judged, as tokens cannot be made alike"
        yield Finding("open", "positions-open", "positions", message, line)
        return
    added = table.product - (table.q * table.k).sum(-1)
    live = evidence.base.weight > ZERO_WEIGHT
    places = [_places(invocation, owner.token) for owner in (table.query, table.key)]
    apart = torch.stack([table.query.sample, table.head, *(places[0] - places[1]).unbind(-1)], -1)[live]
    group = torch.unique(apart, dim=0, return_inverse=True)[1]
    count = int(group.max()) + 1
    top, low = (
        torch.full((count,), sign * torch.inf, dtype=torch.float64).scatter_reduce(0, group, added[live], how)
        for sign, how in ((-1, "amax"), (1, "amin"))
    )
    if float((top - low).max()) > SAME * max(1.0, float(added.abs().max())):
        message = "a learned vector is added to the scores by the places of query and key, not by their distance"
        yield Finding("violation", "positions-relative", "positions", message, line)
        return
    message = "queries or keys times a learned vector of their distance are added to the scores (Transformer-XL)"
    yield Finding("design", "relative-logits", "positions", message, line)


def _places(invocation: Invocation, tokens: Tensor) -> Tensor:
    """(scores, axes): where tokens stand, along each axis that has tokens."""
    stream = invocation.streams[0]
    shape = invocation.arguments[stream.argument].shape
    found = []
    for axis in reversed(stream.token_axes[1:]):
        found.append(tokens % shape[axis])
        tokens = tokens // shape[axis]
    return torch.stack([tokens, *reversed(found)], -1)
