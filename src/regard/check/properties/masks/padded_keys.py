"""Keys that were padded in, to fill a window, a cache or a sequence of fixed length, and that have a weight."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.owners import NONE
from regard.check.target import Invocation
from regard.check.target.cache_forms import cache_names
from regard.check.target.names import call_meaning

__all__ = ["padded_key"]

ALIKE = 1e-12
NOTICEABLE = 1e-6
"""A weight that is one."""


def padded_key(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """Several keys of no token that are alike: every query scores them the same, and gives them a weight.

    Or one that stands among the keys of some queries alone. A sink is one key for all of them, or several learned ones,
    which differ. Zeros around a picture are left to who pads it.

    Args:
        invocation: the call.
        evidence: an attention whose softmax runs over more than scores of tokens.
    """
    values = evidence.base.values
    others = (values.score < 0) & (values.score >= 0).any(-1, keepdim=True) & (values.weight.abs() > NOTICEABLE)
    if any(len(each.token_axes) != 1 for each in invocation.streams) or bool((values.token[others] != NONE).any()):
        return None
    is_placed = any(call_meaning(name) in ("start", "positions") for name in invocation.arguments)
    if (invocation.masks or is_placed) and cache_names(invocation):
        return None  # its caller has to hide what is empty, or to fill it
    instance, row_of = evidence.base.instance, evidence.base.layout.row_of
    for operation in instance.softmaxes:
        axis = int(operation.args[1])
        known = (row_of[instance.run.tags.inputs[operation.index][0]] >= 0).movedim(axis, -1).flatten(0, -2)
        taken, weights = (
            each.data.double().movedim(axis, -1).flatten(0, -2) for each in (operation.inputs[0], operation.outputs[0])
        )
        is_query = known.any(-1)
        seen = ~known & is_query[:, None] & (weights > NOTICEABLE)
        said = _of_some(known[is_query], seen[is_query]) or _alike(taken[is_query], weights[is_query], seen[is_query])
        if said:
            message = f"{said}: they were padded in, and are not masked"
            return Finding("violation", "padding-hidden", "mask", message, instance.scores_location)
    return None


def _of_some(known: Tensor, seen: Tensor) -> str:
    """What is said of keys of no token that are no keys of other queries; empty where there are none.

    Args:
        known: (rows, keys): whether an entry of the softmax is a score of tokens.
        seen: whether it is none and has a weight.
    """
    if not bool(seen.any()) or not bool(known.all(-1).any()):
        return ""
    count = int(seen.any(-1).sum())
    return f"keys of no token have weights in {count} of {len(seen)} rows of scores, where others have tokens"


def _alike(taken: Tensor, weights: Tensor, seen: Tensor) -> str:
    """The same of several that have one score."""
    several = seen.sum(-1) > 1
    low, high = taken.masked_fill(~seen, torch.inf).amin(-1), taken.masked_fill(~seen, -torch.inf).amax(-1)
    gap, largest = (high - low)[several], high[several].abs()
    if not bool(several.any()) or float(gap.max()) > ALIKE * max(1.0, float(largest.max())):
        return ""
    row = int(several.nonzero()[0])
    each = float(weights[row][seen[row]][0])
    return f"{int(seen[row].sum())} keys of no token, which are alike, have weights of {each:.4g} each"
