"""Queries, or keys, times learned vectors that are added to the scores: one vector for each distance."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks import ZERO_WEIGHT
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import TaggedRun
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
    heads = [table.query.sample, table.head]
    if not _is_same(added[live], torch.stack([*heads, *(places[0] - places[1]).unbind(-1)], -1)[live]):
        queries, keys = (
            _is_same(added[live], torch.stack([*heads, owner.token], -1)[live]) for owner in (table.query, table.key)
        )
        distances = {2 * int(each) + 1 for each in places[1].amax(0)}
        if (queries or keys) and not any(_is_cut_from_distances(run, each, distances) for each in learned):
            of_what, others = ("keys", "queries") if keys else ("queries", "keys")
            message = f"{others} times a learned vector of the place of {of_what} are added to the scores"
            yield Finding("design", "absolute-logits", "positions", message, line)
            return
        message = "a learned vector is added to the scores by the places of query and key, not by their distance"
        yield Finding("violation", "positions-relative", "positions", message, line)
        return
    message = "queries or keys times a learned vector of their distance are added to the scores (Transformer-XL)"
    yield Finding("design", "relative-logits", "positions", message, line)


def _is_same(numbers: Tensor, groups: Tensor) -> bool:
    """Whether those of the same group are the same."""
    group = torch.unique(groups, dim=0, return_inverse=True)[1]
    top, low = (
        torch.full((int(group.max()) + 1,), sign * torch.inf, dtype=torch.float64).scatter_reduce(
            0, group, numbers, how
        )
        for sign, how in ((-1, "amax"), (1, "amin"))
    )
    return float((top - low).max()) <= SAME * max(1.0, float(numbers.abs().max()))


def _is_cut_from_distances(run: TaggedRun, product: Contraction, distances: set[int]) -> bool:
    """Whether learned vectors that are taken by place are some of as many as there are distances, or not the first."""
    place = product.right_place if product.left_place in run.depends else product.left_place
    behind = {run.trace.operations[place[0]].inputs[place[1]].storage}
    for operation in reversed(run.trace.operations[: place[0]]):
        if not operation.outputs or operation.outputs[0].storage not in behind:
            continue
        behind.update(each.storage for each in operation.inputs)
        if any(distances & {*each.shape} for each in operation.inputs):
            return True
        if operation.name == "slice" and operation.outputs[0].offset > operation.inputs[0].offset:
            return True
    return False


def _places(invocation: Invocation, tokens: Tensor) -> Tensor:
    """(scores, axes): where tokens stand, along each axis that has tokens."""
    stream = invocation.streams[0]
    shape = invocation.arguments[stream.argument].shape
    found = []
    for axis in reversed(stream.token_axes[1:]):
        found.append(tokens % shape[axis])
        tokens = tokens // shape[axis]
    return torch.stack([tokens, *reversed(found)], -1)
