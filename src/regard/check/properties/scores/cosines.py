"""Scores that are the cosine of a query and a key, divided by their lengths after they were multiplied."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.sums import query_numbers, sums_by

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
    cosines, scores = (
        [of_run[live].double() for of_run in several]
        for several in (
            [(each.q * each.k).sum(-1) / (each.q.norm(dim=-1) * each.k.norm(dim=-1)) for each in (base, fresh)],
            [base.masked, fresh.masked],
        )
    )
    queries, heads = query_numbers(evidence)[live], base.head[live]
    counts = sums_by(queries, torch.ones_like(scores[0])).clamp(min=1)
    moved, turned = (
        change - (sums_by(queries, change) / counts)[queries]
        for change in (scores[0] - scores[1], cosines[0] - cosines[1])
    )
    factors = sums_by(heads, moved * turned) / sums_by(heads, turned.square()).clamp(min=1e-300)
    error = float((moved - factors[heads] * turned).abs().max())
    if not bool((factors > 0).all()) or not error <= SAME * float(moved.abs().max()):
        return None
    least, most = float(factors.min()), float(factors.max())
    is_one = most - least < SAME * most
    if is_one and most <= 1:
        return None  # every key has almost the same weight: nothing says that this is meant
    numbers = f"{most:.4g}" if is_one else "a number of each head"
    message = f"scores are the cosine of query and key, times {numbers} (scaled cosine attention)"
    return Finding("design", "cosine-scores", "scores", message, base.instance.scores_location)
