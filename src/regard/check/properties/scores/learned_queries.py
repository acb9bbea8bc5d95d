"""The factor of queries that are learned: no other input changes them, so that they are compared with one another."""

from __future__ import annotations

import math

import torch

from regard.check.roles.table import AttentionTable

__all__ = ["learned_query_factor"]

EXACT = 1e-9
"""Of the largest number of the queries: what the difference of two may be beside a multiple."""
SAME_NUMBER = 1e-6


def learned_query_factor(table: AttentionTable) -> float:
    """By which learned queries are longer than their projections; NaN where they have none, or no one factor.

    A bias is the same for all queries of a head, and is not in the difference of two. Of two heads it differs, and
    that difference is no multiple. A query without a bias is a multiple itself. Two queries of each head are enough.

    Args:
        table: of an attention whose queries no token changes.
    """
    rows = [row for head in range(table.num_heads) for row in _first_and_last(table, head)]
    queries, sources = (torch.nn.functional.pad(each[rows], (0, 0, 0, 1)) for each in (table.q, table.q_source))
    if queries.shape != sources.shape or bool(sources.isnan().any()) or queries.shape[-1] < 2:
        return math.nan
    one, other = torch.triu_indices(len(queries), len(queries), 1)
    apart, before = queries[one] - queries[other], sources[one] - sources[other]  # (pairs, width)
    lengths = before.square().sum(-1)
    apart, before, lengths = (each[lengths > 0] for each in (apart, before, lengths))
    factors = (apart * before).sum(-1) / lengths
    are_multiples = ((apart - factors[:, None] * before).abs() <= EXACT * float(queries.abs().max())).all(-1)
    found = factors[are_multiples]
    if not len(found) or float(found.max() - found.min()) > SAME_NUMBER * float(found.abs().max()):
        return math.nan
    return float(found.mean())


def _first_and_last(table: AttentionTable, head: int) -> set[int]:
    """The scores of the first query of a head and of the last one, which may be the same."""
    mine = (table.head == head).nonzero().flatten()
    place = table.query.token[mine]
    return {int(mine[place.argmin()]), int(mine[place.argmax()])}
