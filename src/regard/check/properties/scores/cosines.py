"""Scores that are the cosine of a query and a key, divided by their lengths after they were multiplied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.sums import query_numbers, sums_by
from regard.check.roles.table import AttentionTable

__all__ = ["cosine_scores"]

SAME = 1e-8
"""Of the largest change of a score: how far one may be from that of its cosine."""


def cosine_scores(evidence: Evidence) -> Finding | None:
    """Scores that are q . k / (|q| |k|) times a number of each head, but for what hangs on no token; None of others.

    Liu et al. 2022, "Swin Transformer V2", section 3.2.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    base, fresh = evidence.base, evidence.fresh
    if base.q.shape != base.k.shape or base.masked.shape != fresh.masked.shape or base.instance.added:
        return None
    live = base.masked.isfinite() & fresh.masked.isfinite()
    if not bool(live.any()):
        return None
    products, scores = (
        [of_run[live].double() for of_run in several]
        for several in (
            [(each.q * each.k).sum(-1) / each.q.norm(dim=-1) for each in (base, fresh)],
            [base.masked, fresh.masked],
        )
    )
    queries, heads = query_numbers(evidence)[live], base.head[live]
    lengths = [each.k.norm(dim=-1)[live].double() for each in (base, fresh)]
    factors = _factors(products, lengths, scores, queries, heads)
    if factors is None:
        own = [_of_the_own_key(each)[live].double() for each in (base, fresh)]
        if all(bool(each.isfinite().all()) for each in own):
            factors = _factors(products, own, scores, queries, heads)
        if factors is None:
            return None
        message = (
            "q . k is divided by the length of the query and of the key of the query's own token: no cosine of both, "
            "which is divided by the length of the key that is looked at"
        )
        return Finding("violation", "cosine-of-both", "scores", message, base.instance.scores_location)
    least, most = float(factors.min()), float(factors.max())
    is_one = most - least < SAME * most
    if is_one and most <= 1:
        return None  # every key has almost the same weight: nothing says that this is meant
    numbers = f"{most:.4g}" if is_one else "a number of each head"
    message = f"scores are the cosine of query and key, times {numbers} (scaled cosine attention)"
    return Finding("design", "cosine-scores", "scores", message, base.instance.scores_location)


def _factors(
    products: Sequence[Tensor], lengths: Sequence[Tensor], scores: Sequence[Tensor], queries: Tensor, heads: Tensor
) -> Tensor | None:
    """(heads): times how much products, divided by lengths, are the scores of two runs; None where they are not.

    But for what is the same in both runs, and for what is the same for all keys of a query.
    """
    cosines = [one / length for one, length in zip(products, lengths, strict=True)]
    counts = sums_by(queries, torch.ones_like(scores[0])).clamp(min=1)
    moved, turned = (
        change - (sums_by(queries, change) / counts)[queries]
        for change in (scores[0] - scores[1], cosines[0] - cosines[1])
    )
    factors = sums_by(heads, moved * turned) / sums_by(heads, turned.square()).clamp(min=1e-300)
    error = float((moved - factors[heads] * turned).abs().max())
    return factors if bool((factors > 0).all()) and error <= SAME * float(moved.abs().max()) else None


def _of_the_own_key(table: AttentionTable) -> Tensor:
    """(scores): the length of the key that the query's own token has in the same head; NaN where it has none."""
    places = torch.stack([table.query.sample, table.head, table.key.token], -1)
    asked = torch.stack([table.query.sample, table.head, table.query.token], -1)
    groups = torch.unique(torch.cat([places, asked]), dim=0, return_inverse=True)[1]
    of_group = torch.full((int(groups.max()) + 1,), torch.nan, dtype=table.k.dtype)
    of_group[groups[: len(places)]] = table.k.norm(dim=-1)
    return of_group[groups[len(places) :]]
