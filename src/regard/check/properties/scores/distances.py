"""Scores that fall with the distance of a query and a key."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED
from regard.check.properties.sums import query_numbers, sums_by
from regard.check.roles.table import AttentionTable

__all__ = ["decayed_scores", "distance_scores"]

SAME = 1e-8
"""Of the largest score: how far one may be from these two parts."""
MORE = 3
"""Times as many scores as columns: of fewer, any numbers can be written with them."""


def distance_scores(evidence: Evidence) -> Finding | None:
    """Scores that are -|q - k|^2 times one number, but for what is the same for all keys of a query; None of others.

    Of |q - k|^2 = q . q + k . k - 2 q . k the first part is such; queries may be multiplied by 2 before they are here.

    Kim, Papamakarios and Mnih 2021, "The Lipschitz Constant of Self-Attention", section 4.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    table = evidence.base
    live = table.masked.isfinite()
    if not bool(live.any()) or table.q.shape != table.k.shape:
        return None
    numbers = query_numbers(evidence)[live]
    several = [((table.q * table.k).sum(-1), [table.k.square().sum(-1)]), *_added_products(table)]
    columns = [each for product, lengths in several for each in (product, *lengths)]
    if len(columns) * MORE > len(numbers):
        return None
    scores, *parts = (_less_their_mean(each[live].double(), numbers) for each in (table.masked, *columns))
    factors = torch.linalg.lstsq(torch.stack(parts, -1), scores[:, None], driver="gelsd").solution.flatten()
    largest = float(scores.abs().max())
    error = float((scores - torch.stack(parts, -1) @ factors).abs().max())
    rest = factors.tolist()
    for _, lengths in several:
        by_product, by_length = rest[0], sum(rest[1 : 1 + len(lengths)])
        rest = rest[1 + len(lengths) :]
        if not by_length < 0 < by_product:
            return None
    if error > SAME * largest:
        return None
    message = "scores fall with the squared distance of query and key (L2 attention)"
    if len(several) > 1:
        message = f"scores fall with {len(several)} squared distances of query and key, as of means and deviations"
    return Finding("design", "distance-scores", "scores", message, table.instance.scores_location)


def _added_products(table: AttentionTable) -> list[tuple[Tensor, list[Tensor]]]:
    """Each further product of a query and a key that is added to q . k, and the squared lengths of its two factors.

    That of the query is the same for all its keys. As of the Wasserstein distance of two Gaussians, whose means and
    standard deviations are as far apart (Fan et al. 2022, "Sequential Recommendation via Stochastic Self-Attention").
    """
    instance, run = table.instance, table.instance.run
    row_of, several = table.rows_of_tags(), list[tuple[Tensor, list[Tensor]]]()
    for each in instance.added:
        first, found = run.first_tag[each.operation.index], torch.zeros(3, len(table.weight), dtype=torch.float64)
        sides = [
            run.trace.taken(place).data.flatten()[terms].double()
            for place, terms in ((each.left_place, each.left_terms), (each.right_place, each.right_terms))
        ]
        if torch.equal(sides[0], sides[1]):
            continue  # a squared length
        columns = torch.stack([(sides[0] * sides[1]).sum(-1), *(side.square().sum(-1) for side in sides)])
        for kept, lost in run.tags.sums:
            rows = row_of[kept]
            mine = (lost >= first) & (lost < first + columns.shape[-1]) & (rows >= 0)
            found[:, rows[mine]] = columns[:, lost[mine] - first]
        several.append((found[0], [found[1], found[2]]))
    return several


def decayed_scores(evidence: Evidence) -> Finding | None:
    """Scores that are q . k times a number, which is the same for the keys at the queries' places, and less elsewhere.

    By which it is less may depend on the tokens. Ghosh, Heffernan and Lan 2020, "Context-Aware Attentive Knowledge
    Tracing", equation 2. None of others, as of scores that are times a mask of 0 and 1.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    for table in (evidence.base, evidence.fresh):
        live = (table.masked > BLOCKED) & (table.product.abs() > SAME)
        factor, is_own = (table.masked / table.product)[live], (table.query.token == table.key.token)[live]
        if not bool(is_own.any()) or not bool((factor > 0).all()):
            return None
        largest = float(factor.max())
        is_same = float(largest - factor[is_own].min()) <= SAME * largest
        if not is_same or not bool((factor[~is_own] < (1 - SAME) * largest).any()):
            return None
    message = "scores are times a number that falls from 1 away from the query's own place (monotonic attention)"
    return Finding("design", "decayed-scores", "scores", message, evidence.base.instance.scores_location)


def _less_their_mean(numbers: Tensor, queries: Tensor) -> Tensor:
    """Numbers of the scores, less their mean over the keys of the query."""
    counts = sums_by(queries, torch.ones_like(numbers)).clamp(min=1)
    return numbers - (sums_by(queries, numbers) / counts)[queries]
