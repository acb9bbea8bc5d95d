"""Scores that are less what the queries before have put away: selective attention."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED
from regard.check.roles.table import AttentionTable

__all__ = ["selected_scores"]

SAME = 1e-8
"""Of the largest score."""


def selected_scores(evidence: Evidence) -> Finding | None:
    """Scores of q . k, less the positive scores that the queries before gave the same key in one of the heads.

    A query may put away any key or none, as not its own and not the first. Leviathan, Kalman and Matias 2024,
    "Selective Attention Improves Transformer", section 3. None of other scores.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    heads = [_selecting_heads(each) for each in (evidence.base, evidence.fresh)]
    both = [each for each in heads[0] if each in heads[1]]
    if len(both) != 1:
        return None
    message = f"a key's scores are less the positive ones that queries before gave it in head {both[0]} (selection)"
    return Finding("design", "selected-scores", "scores", message, evidence.base.instance.scores_location)


def _selecting_heads(table: AttentionTable) -> list[int]:
    """The heads whose scores are what later queries' scores are less; none where scores are made otherwise."""
    scores, products = (table.dense(each).double() for each in (table.masked, table.product))
    seen = scores > BLOCKED  # not of what is hidden, nor of what is computed nowhere
    queries, keys = scores.shape[-2:]
    if queries != keys or queries < 3 or not bool((seen == torch.ones(queries, keys).tril().bool()).all()):
        return []
    scale = scores[..., 0, 0] / products[..., 0, 0]
    largest = float(scores[seen].abs().max())
    if float(scale.max() - scale.min()) > SAME * abs(float(scale.max())) or float(scale.min()) <= 0:
        return []
    plain = products * scale.mean()
    less = torch.where(seen, plain - scores, 0.0)
    if float((less - less[:, :1]).abs().max()) > SAME * largest:
        return []
    steps, given = less[:, 0].diff(dim=-2), plain[..., :-1, :].relu()
    earlier = seen[:, :1, :-1].expand_as(given)
    if float(steps.abs().amax()) <= SAME * largest:
        return []
    return [head for head in range(scores.shape[1]) if _are_put_away(steps, given[:, head], earlier[:, head], largest)]


def _are_put_away(steps: Tensor, given: Tensor, earlier: Tensor, largest: float) -> bool:
    """Whether each query adds to a key what it gave it, or nothing."""
    is_all, is_none = ((steps - each).abs() <= SAME * largest for each in (given, torch.zeros_like(given)))
    return bool((is_all | is_none)[earlier].all())
