"""A matrix W_O that is kept with an axis of the heads: what a head read is multiplied by its own part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.outputs.heads import MovedSums
from regard.check.properties.own_tensors import OF_HEADS, own_tensors
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.target.preparation import copied

__all__ = ["matrix_of_head_findings"]

MOST_HEADS = 8
"""Heads: each costs a run."""


def matrix_of_head_findings(
    invocation: Invocation, evidence: Evidence, frozen: Mapping[int, Tensor]
) -> Iterator[Finding]:
    """What one head read is multiplied by several heads' parts of a learned tensor of (heads, width, outputs).

    As where the heads are joined behind their channels, and W_O is viewed as (heads * width, outputs).

    Args:
        invocation: the call.
        evidence: of the attention.
        frozen: the weights and weighted sums of all attentions, by the index of their operation.
    """
    table, heads = evidence.base, evidence.base.num_heads
    if not 1 < heads <= MOST_HEADS or not table.whole or table.query.stream.numel() == 0:
        return
    asking = int(table.query.stream[0])
    if not 0 <= asking < len(invocation.streams):  # learned queries
        return
    stream = invocation.streams[asking]
    shown = MovedSums(invocation, evidence, stream, invocation.arguments[stream.argument].shape, frozen)
    alone, nothing, start = dict(frozen), dict(frozen), 0
    mine = shown.of_head(0, int(table.query.token.max()) + 1)
    for one in table.instance.sums:
        count, base = one.output.data.numel(), frozen[one.operation.index]
        alone[one.operation.index] = torch.where(mine[start : start + count].reshape(base.shape), base, 0.0)
        nothing[one.operation.index] = torch.zeros_like(base)
        start += count
    for path, each, text in own_tensors(invocation, evidence):
        if each.ndim < 3 or list(each.shape).count(heads) != 1 or not OF_HEADS.search(text):
            continue
        axis = list(each.shape).index(heads)
        several = [invocation, *(_with_other_part(invocation, path, axis, part) for part in range(heads))]
        parts = _moving(several, alone)
        if len(parts) > 1 and not _moving(several, nothing):  # else it is added to what is read
            listed = ", ".join(map(str, parts))
            message = f"what head 0 read is multiplied by the parts of {path} that belong to heads {listed}"
            yield Finding("violation", "matrix-of-its-head", "projected", message, table.instance.sums_location)
            return


def _moving(several: Sequence[Invocation], held: Mapping[int, Tensor]) -> list[int]:
    """Which of some calls return something else than the first, with what heads read held; none where not known."""
    before, *others = [record_invocation(called, frozen=held) for called in several]
    if before.error or not before.outputs or not all(run.same_operations(before) for run in others):
        return []
    of_all = enumerate(differs(before.outputs[0].data, run.outputs[0].data) for run in others)
    return [number for number, moved in of_all if bool(moved.any())]


def _with_other_part(invocation: Invocation, path: str, axis: int, part: int) -> Invocation:
    """The call of a module in which the part of a tensor that belongs to one head is another one."""
    other = copied(invocation.target)
    owner, _, name = path.rpartition(".")
    with torch.no_grad():
        numbers = getattr(other.get_submodule(owner), name).data.select(axis, part)
        numbers += torch.linspace(0.5, 1.0, numbers.numel(), dtype=numbers.dtype).reshape(numbers.shape)
    return replace(invocation, target=other)
