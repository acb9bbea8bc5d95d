"""Weights that are a part softmax and a part something else: what was handed over, or a softmax of places.

What is handed over may be the adjacency of atoms in a molecule; the softmax of places is that of ConViT. Or weights
that a norm makes of the softmax, as in ResT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.instances import SOFTMAXES
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.trace.operation import Operation

__all__ = ["GATED", "MIXED", "mixed_weights", "of_the_softmax"]

MIXED = "weights-mixed-in"
GATED = "gated-positions"
NORMED = "weights-normed"
NORMS = frozenset({"native_batch_norm", "native_layer_norm", "native_group_norm", "_native_batch_norm_legit"})
"""The norms of PyTorch's core; `nn.InstanceNorm2d` is the first."""
SAME = 1e-8


def mixed_weights(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """A number times the softmax, plus a matrix of an argument that is no mask, or a softmax of places; or its norm.

    None of anything else. What is added is nowhere negative and the same whatever the tokens are: a mask, or a bias
    that was meant for the scores, is no such argument. What weights sum to is for the argument to say.

    Args:
        invocation: the call.
        evidence: of one of its attentions.
    """
    base, fresh = evidence.base, evidence.fresh
    if len(base.weight) != len(fresh.weight) or bool(base.softmax.isnan().any()):
        return None
    norm = _norm(base)
    if norm is not None:
        message = "a norm is taken of what the softmax returned: weights may be negative, and do not sum to 1 (ResT)"
        return Finding("design", NORMED, "weights", message, norm.location)
    moved, of_weight = fresh.softmax - base.softmax, fresh.weight - base.weight
    sums = torch.zeros(2, base.num_heads, dtype=torch.float64)
    parts, squares = sums.index_add_(1, base.head, torch.stack([moved * of_weight, moved * moved]))
    parts = parts / squares.clamp(min=1e-300)
    part = parts[base.head]
    added = base.weight - part * base.softmax
    is_constant = float((of_weight - part * moved).abs().max()) < SAME
    is_part = bool(((parts > SAME) & (parts < 1 + SAME)).all())
    if not is_constant or not is_part or float(added.min()) < -SAME or float(added.max()) < SAME:
        return None
    line, told = base.instance.sums_location, _told(parts)
    for name in _matrices(invocation, base) if float(parts.max() - parts.min()) < SAME else ():
        message = f"weights are {told} times the softmax, and what {name} holds is added to them"
        return Finding("design", MIXED, "weights", message, line)
    if _is_of_places(base, added, 1 - parts):
        message = f"weights are {told} times the softmax; the rest is one of places alone (gated positions, ConViT)"
        return Finding("design", GATED, "weights", message, line)
    return None


def _norm(table: AttentionTable) -> Operation | None:
    """The norm that takes what the softmax made of the scores; None where there is none."""
    run, own = table.instance.run, {each.operation.index for each in table.instance.scores}
    for operation in run.trace.operations[max((each.index for each in table.instance.softmaxes), default=0) :]:
        if operation.name in NORMS and run.owner_of(run.tags.inputs[operation.index][0]) & own:
            return operation
    return None


def _told(parts: Tensor) -> str:
    low, high = (f"{float(each):.4g}" for each in (parts.min(), parts.max()))
    return low if low == high else f"{low} to {high}"


def _is_of_places(table: AttentionTable, added: Tensor, shares: Tensor) -> bool:
    """Whether what is added to the weights is, in each head, its share of what a softmax of no scores returned."""
    if bool((added[table.softmax == 0] > SAME).any()):
        return False  # a mask hides what the places show again
    dense = table.dense(added)[0]
    for operation in table.instance.run.trace:
        if operation.name not in SOFTMAXES or operation in table.instance.softmaxes:
            continue
        found = operation.outputs[0].data
        if found.ndim < 2 or found.shape[-2:] != dense.shape[-2:]:
            continue
        found = found.reshape(-1, *dense.shape[-2:]).double()
        over_keys = float((found.sum(-1) - 1).abs().max()) < SAME
        if over_keys and any(
            len(each) in (1, len(dense)) and float((shares[:, None, None] * each - dense).abs().max()) < SAME
            for each in (found[:1], found[: len(dense)])
        ):
            return True
    return False


def _matrices(invocation: Invocation, table: AttentionTable) -> Iterator[str]:
    """The arguments with a number for each query and key, of which something is added to what the softmax returned."""
    trace, run = table.instance.run.trace, table.instance.run
    queries, keys = (int(each.token.max()) + 1 for each in (table.query, table.key))
    own = {each.operation.index for each in table.instance.scores}
    first = min(each.index for each in table.instance.softmaxes)
    sums = [each for each in trace.operations[first:] if each.is_addition]
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
