"""Additive scores from which the softmax takes the query out again: it was added to all of them alike."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED
from regard.check.roles.influence import Influence
from regard.check.roles.table import AttentionTable

__all__ = ["cancelled_query"]

SAME = 1e-9
"""Of the largest score: a smaller difference is rounding."""


def cancelled_query(evidence: Evidence, influence: Influence) -> Finding | None:
    """That no query has an effect on its weights, though its scores are made of it; None where one has.

    Args:
        evidence: an attention.
        influence: of the tokens and samples of the run that it is of.
    """
    table = evidence.base
    instance = table.instance
    if not instance.run.additive or not instance.softmaxes or table.streams != tuple(evidence.roles):
        return None
    queries, keys = ({*each.stream.tolist()} for each in (table.query, table.key))
    if queries & keys:  # a leaky ReLU of numbers that are all above 0 changes nothing: hardly so in two runs
        is_lost = all(_is_the_same_for_all(each) for each in (table, evidence.fresh))
    else:
        is_lost = _is_without_effect(evidence, influence, queries)
    if not is_lost:
        return None
    message = (
        "all scores of a query have the same number of it added: the softmax takes it out again, so that what a query "
        "asks has no effect on its weights"
    )
    return Finding("violation", "query-in-the-weights", "scores", message, instance.scores_location)


def _is_without_effect(evidence: Evidence, influence: Influence, queries: set[int]) -> bool:
    """Whether the softmaxes take numbers that depend on the queries' sequence, and return none."""
    names = {evidence.base.streams[each] for each in queries if each >= 0}
    rows = [row for row, (source, _) in enumerate(influence.runs) if source.stream in names]
    softmaxes = evidence.base.instance.softmaxes
    return all(
        bool(influence.of(each.index, 0)[rows].any()) and not bool(influence.of(each.index, 0, output=True)[rows].any())
        for each in softmaxes
    )


def _is_the_same_for_all(table: AttentionTable) -> bool:
    """Whether the scores of any two queries of one sequence differ by one number, the same for every key."""
    scores = table.dense(table.masked)
    scores = torch.where(scores > BLOCKED, scores, torch.nan)
    apart = scores - scores[..., -1:, :]  # the last query sees the most keys
    largest = float(scores.nan_to_num(0.0).abs().max())
    known = ~apart.isnan()
    least = torch.where(known, apart, torch.inf).amin(-1)
    most = torch.where(known, apart, -torch.inf).amax(-1)
    several = (known.sum(-1) > 1)[..., :-1]
    if not bool(several.any()):
        return False
    spread, moved = (most - least)[..., :-1][several], most[..., :-1][several].abs()
    return float(spread.max()) <= SAME * largest and float(moved.max()) > SAME * largest
