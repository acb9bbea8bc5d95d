"""Parts of the keys, each with a softmax of its own, that are merged to one: each counts by its own exponentials."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence, Finding

__all__ = ["merged_parts"]

EXPONENTIALS = frozenset({"exp", "exp2", "logsumexp"})
SAME = 1e-6
"""Of the logarithms of two weights, less their scores."""
MIN_WEIGHT = 1e-9


def merged_parts(evidence: Evidence) -> Finding | None:
    """Adjacent keys whose weights are a softmax's among themselves, and not beside those of the other keys.

    None of anything else: a bias of positions, or a gate between them, is no number that the tokens change.
    """
    base, fresh = evidence.base, evidence.fresh
    if not base.instance.steps & EXPONENTIALS or not base.whole:
        return None
    if min(float(each.weight.min()) for each in (base, fresh)) < MIN_WEIGHT:
        return None
    scores = [base.dense(each.product) * base.width**-0.5 for each in (base, fresh)]
    weights = [base.dense(each.weight) for each in (base, fresh)]
    steps = torch.stack([(weight.log() - score).diff() for weight, score in zip(weights, scores, strict=True)])
    joined = (steps.abs() < SAME).flatten(0, -2).all(0)
    if bool(joined.all()) or not bool(joined.any()) or bool(steps.isnan().any()):
        return None
    end = int((~joined).nonzero()[0]) + 1
    found, wanted = (float(each[0, 0, 0, :end].sum()) for each in (weights[0], scores[0].softmax(-1)))
    message = (
        f"parts of the keys are merged by other weights than the sums of their exponentials: query 0 gives the first "
        f"{end} keys {found:.4g} together, and {wanted:.4g} by a softmax over all keys"
    )
    return Finding("violation", "parts-merged", "weights", message, base.instance.sums_location)
