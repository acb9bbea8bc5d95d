"""What the attentions return and what it is added to: the input once, and what is added stays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["ACTIVATIONS", "residual_findings"]

ACTIVATIONS = frozenset({"gelu", "relu", "silu", "leaky_relu", "elu", "mish", "hardswish", "celu", "selu"})


def residual_findings(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Violations of the sums around attentions."""
    yield from _added_to_itself(run, instances)
    for instance in instances:
        lost = _lost(run, instance)
        if lost is not None:
            message = "the feed-forward network's output is added to what the attention's was added to before, and not"
            message += " to the sum: what the attention added is lost"
            yield Finding("violation", "residual-of-the-sum", "block", message, lost.location)
            return


def _added_to_itself(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """The input, or what an attention made, is added to itself."""
    first = min((int(each.min()) for each in run.given.values() if each.numel()), default=run.num_tags)
    attended = min((product.operation.index for each in instances for product in each.sums), default=len(run.trace))
    for operation in run.trace:
        if not _is_sum(operation):
            continue
        one, two = run.tags.inputs[operation.index]
        if one.shape != two.shape or not bool((one > 0).all()) or not torch.equal(one, two):
            continue
        if not torch.equal(operation.inputs[0].data, operation.inputs[1].data):
            continue
        if bool((one >= first).all()):
            name, message = "residual-once", "the input is added to itself: the residual is twice"
        elif bool((one < first).all()) and all(index >= attended for index in run.owner_of(one)):
            name, message = "residual-of-the-input", "what the block computed is added to itself, not to the input"
        else:
            continue
        yield Finding("violation", name, "block", message, operation.location)
        return


def _lost(run: TaggedRun, instance: AttentionInstance) -> Operation | None:
    """The sum of a feed-forward network that reads x + attention(x) with x alone, where that is all that is left of it.

    None where the sum with the attention goes on in any other way, or where there is no such sum.
    """
    trace = run.trace
    attended = _reached(trace, {each.operation.outputs[0].storage for each in instance.sums}, trace.operations)
    for operation in trace.operations[instance.sums[-1].operation.index + 1 :]:
        if not _is_sum(operation) or operation.inputs[0].shape != operation.inputs[1].shape:
            continue
        before = [each for each in operation.inputs if each.storage not in attended]
        if len(before) == 1 and operation.outputs[0].storage != before[0].storage:
            return _sum_without(run, operation, before[0])
    return None


def _sum_without(run: TaggedRun, total: Operation, x: TensorRecord) -> Operation | None:
    """The sum of x and of a feed-forward network of a sum with x, unless that sum is a part of anything else."""
    trace = run.trace
    later = trace.operations[total.index + 1 :]
    products = {each.operation.index for each in run.products}
    carried = _reached(trace, {total.outputs[0].storage}, [each for each in later if each.index not in products])
    reached = _reached(trace, {total.outputs[0].storage}, later)
    if any(each.storage in carried for each in trace.outputs):
        return None
    found, is_activated = None, False
    for operation in later:
        if operation.name.rstrip("_") in ACTIVATIONS:
            is_activated |= operation.inputs[0].storage in reached - carried
        if not _is_sum(operation) or operation.inputs[0].shape != x.shape or operation.inputs[1].shape != x.shape:
            continue
        if any(each.storage in carried for each in operation.inputs):
            return None
        others = [each for each in operation.inputs if not _is_same(each, x)]
        if found is None and is_activated and len(others) == 1 and others[0].storage in reached:
            found = operation
    return found


def _reached(trace: Trace, start: Collection[int], operations: Sequence[Operation]) -> set[int]:
    """The memory of what some operations made of what is in some memory."""
    found = set(start)
    for operation in operations:
        if any(each.storage in found for each in operation.inputs):
            found.update(each.storage for each in (*operation.outputs, *operation.written))
    return found


def _is_same(one: TensorRecord, other: TensorRecord) -> bool:
    return one.storage == other.storage and one.offset == other.offset and torch.equal(one.data, other.data)


def _is_sum(operation: Operation) -> bool:
    return operation.name.rstrip("_") == "add" and len(operation.inputs) == 2
