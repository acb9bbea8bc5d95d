"""Two sequences that stand one behind the other and attend as one: the order of all their tokens."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.table import AttentionTable

__all__ = ["joined_order"]


def joined_order(evidence: Evidence) -> Finding | None:
    """That a query sees the keys up to its own place in both sequences; None where no order of the two shows it.

    As of the patches of a picture before the words of a text. The first one may be seen as a whole, as a prefix is.
    """
    table, other = evidence.base, evidence.fresh
    streams = torch.unique(torch.cat([table.query.stream, table.key.stream])).tolist()
    if len(streams) != 2 or min(streams) < 0 or len(table.weight) != len(other.weight):
        return None
    if bool((table.query.token < 0).any()) or bool((table.key.token < 0).any()):
        return None
    allowed = (table.weight.abs() > ZERO_WEIGHT) | (other.weight.abs() > ZERO_WEIGHT)
    line = table.instance.scores_location
    for first, last in (streams, streams[::-1]):
        before = _count(table, first)
        query, key = (each.token + torch.where(each.stream == last, before, 0) for each in (table.query, table.key))
        names = f"{table.streams[first]} before {table.streams[last]}"
        if torch.equal(allowed, key <= query):
            message = f"causal: a query sees keys up to its own position, {names}"
            return Finding("holds", "mask-pattern", "mask", message, line)
        if torch.equal(allowed, (key <= query) | (key < before)):
            message = (
                f"its own mask: {names}; the first is seen by all, and a query of the second up to its own position"
            )
            return Finding("design", "mask-pattern", "mask", message, line)
    return None


def _count(table: AttentionTable, stream: int) -> int:
    """How many tokens of a sequence there are."""
    several = [each.token[each.stream == stream] for each in (table.query, table.key)]
    return int(torch.cat(several).max()) + 1
