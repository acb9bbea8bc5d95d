"""Weights that are a part softmax and a part of what was handed over, as the adjacency of atoms in a molecule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.names import call_meaning

__all__ = ["MIXED", "mixed_weights", "of_the_softmax"]

MIXED = "weights-mixed-in"
SAME = 1e-8


def mixed_weights(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """A number times the softmax, plus a matrix of an argument that is no mask; None of anything else.

    What is added is nowhere negative and the same whatever the tokens are: a mask, or a bias that was meant for the
    scores, is no such argument. What weights sum to is for the argument to say.

    Args:
        invocation: the call.
        evidence: of one of its attentions.
    """
    base, fresh = evidence.base, evidence.fresh
    if len(base.weight) != len(fresh.weight) or bool(base.softmax.isnan().any()):
        return None
    moved, of_weight = fresh.softmax - base.softmax, fresh.weight - base.weight
    part = float(moved @ of_weight) / max(float(moved @ moved), 1e-300)
    added = base.weight - part * base.softmax
    is_constant = float((of_weight - part * moved).abs().max()) < SAME
    if not is_constant or not SAME < part < 1 + SAME or float(added.min()) < -SAME or float(added.max()) < SAME:
        return None
    for name in _matrices(invocation, base):
        message = f"weights are {part:.4g} times the softmax, and what {name} holds is added to them"
        return Finding("design", MIXED, "weights", message, base.instance.sums_location)
    return None


def _matrices(invocation: Invocation, table: AttentionTable) -> Iterator[str]:
    """The arguments with a number for each query and key, of which something is added to what the softmax returned."""
    trace, run = table.instance.run.trace, table.instance.run
    queries, keys = (int(each.token.max()) + 1 for each in (table.query, table.key))
    own = {each.operation.index for each in table.instance.scores}
    first = min(each.index for each in table.instance.softmaxes)
    sums = [each for each in trace.operations[first:] if each.name.rstrip("_") == "add" and len(each.inputs) == 2]
    added = {
        other.storage
        for each in sums
        for tags, other in zip(run.tags.inputs[each.index], reversed(each.inputs), strict=True)
        if run.owner_of(tags) & own
    }
    for name, value in invocation.arguments.items():
        is_matrix = isinstance(value, Tensor) and value.ndim >= 2 and tuple(value.shape[-2:]) == (queries, keys)
        is_mask = call_meaning(name) == "mask" and not name.startswith("adj")  # an adjacency hides, or is mixed in
        if not is_matrix or name not in trace.arguments or is_mask:
            continue
        if added & trace.made_of([trace.arguments[name].storage]):
            yield name


def of_the_softmax(evidence: Evidence) -> Evidence:
    """The same attention with the weights that its softmax returned: its scores are judged by these."""
    base, fresh = (replace(each, weight=each.softmax) for each in (evidence.base, evidence.fresh))
    return replace(evidence, base=base, fresh=fresh)
