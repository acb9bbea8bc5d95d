"""Scores that are the same for all keys of a query: the softmax makes a mean of them."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.saturation import BLOCKED
from regard.check.roles.instances import SOFTMAXES, AttentionInstance
from regard.check.trace.operation import Trace, axis_of

__all__ = ["equal_scores"]

SAME = 1e-9
"""Of the largest score: a smaller difference is rounding."""


def equal_scores(instance: AttentionInstance, base: Trace, fresh: Trace) -> Finding | None:
    """That no key has an effect on its weights, though scores are made of the tokens; None where one has.

    Scores that no token changes are no scores of tokens, as where a mean of all before is written as a softmax.

    Args:
        instance: an attention.
        base: the run that it is of.
        fresh: the run of other tokens.
    """
    if not instance.softmaxes or any(each.name not in SOFTMAXES for each in instance.softmaxes):
        return None
    if not fresh.same_operations(base):
        return None
    is_changed = False
    for softmax in instance.softmaxes:
        axis = axis_of(softmax.function, softmax.args, softmax.kwargs)
        one, other = (each.operations[softmax.index].inputs[0].data for each in (base, fresh))
        if axis is None or not all(_are_equal(each.movedim(axis, -1)) for each in (one, other)):
            return None
        is_changed = is_changed or not torch.equal(one, other)
    if not is_changed:
        return None
    message = (
        "all keys of a query that are not blocked have the same score, one that is made of the tokens: "
        "every query reads the mean of the values"
    )
    return Finding("violation", "key-in-the-weights", "scores", message, instance.scores_location)


def _are_equal(scores: Tensor) -> bool:
    """Whether each row is of one number, several times in some, besides those that are blocked."""
    seen = scores > BLOCKED
    most = torch.where(seen, scores, -torch.inf).amax(-1)
    least = torch.where(seen, scores, torch.inf).amin(-1)
    several = seen.sum(-1) > 1
    if not bool(several.any()):
        return False
    largest = float(scores[seen].abs().max())
    return float((most - least)[several].max()) <= SAME * largest
