"""Scores that are kept within bounds by a clamp, before anything is hidden: q . k times one number between them."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED

__all__ = ["clamped_scores"]

CLAMPS = frozenset({"clamp", "hardtanh"})
LINEAR = 1e-6
"""The largest difference of what is clamped from a number times q . k, relative to the largest of them."""


def clamped_scores(evidence: Evidence) -> Finding | None:
    """The design of scores that are one number times q . k, and no more than a limit away from zero; None of others.

    Where the softmax takes something else than what was clamped, but for what a mask hides, it is none. Nor is it where
    the bounds are not as far from zero: a ReLU of scores, or one that makes weights of them, is something else.

    Args:
        evidence: one attention, whose scores are no number times q . k.
    """
    table = evidence.base
    if not table.instance.scores:
        return None
    run = table.instance.run
    own = {each.operation.index for each in table.instance.scores}
    products = torch.cat([each.output.data.flatten() for each in table.instance.scores]).double()
    for operation in run.trace:
        if operation.name.rstrip("_") not in CLAMPS or not operation.inputs:
            continue
        tags = run.tags.inputs[operation.index][0]
        if not run.owner_of(tags) & own:
            continue
        rows, taken = table.layout.row_of[tags].flatten(), operation.inputs[0].data.flatten().double()
        bounded = operation.outputs[0].data.flatten().double()
        known = (rows >= 0) & taken.isfinite()
        mine, taken, limit = products[rows[known]], taken[known], float(bounded.abs().max())
        slope = float((taken @ mine) / (mine @ mine).clamp(min=1e-300))
        is_of_scores = float((taken - slope * mine).abs().max()) <= LINEAR * float(taken.abs().max())
        is_even = bool(torch.equal(bounded[known], taken.clamp(-limit, limit)))
        live = table.masked > BLOCKED
        rest = table.masked[live] - (slope * table.product[live]).clamp(-limit, limit)
        is_all = bool(live.any()) and float(rest.abs().max()) <= LINEAR * limit
        if is_of_scores and is_even and is_all and float(taken.abs().max()) > limit > 0:
            message = f"scores are clamped: none is more than {limit:.4g} away from zero"
            return Finding("design", "clamped-scores", "scores", message, operation.location)
    return None
