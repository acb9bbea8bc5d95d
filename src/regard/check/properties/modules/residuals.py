"""What the attentions return and what it is added to: the input once, and what is added stays."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence

import torch

from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation, TensorRecord, Trace, reached

__all__ = [
    "ACTIVATIONS",
    "IN_GELU",
    "LAYER_NORMS",
    "PRE_NORM",
    "forgotten_findings",
    "is_joined",
    "is_sum",
    "residual_findings",
]

PRE_NORM = re.compile(
    r"pre[-_ ]?(?:layer[-_ ]?|rms[-_ ]?)?norm|\bpre[-_ ]?ln\b|\b(\w+)\s*\+\s*\w+\(\s*(?:\w*norm|ln)\w*\(\s*\1\s*\)",
    re.I,
)
"""In a name or a documentation: norms stand before the attention, and the residual goes past them.

Also by a formula, as x + Attention(LayerNorm(x)).
"""
ACTIVATIONS = frozenset({"gelu", "relu", "silu", "leaky_relu", "elu", "mish", "hardswish", "celu", "selu"})
LAYER_NORMS = frozenset({"native_layer_norm", "_fused_rms_norm"})
IN_GELU = frozenset({"tanh", "erf"})
"""What an activation that is written by hand computes."""


def residual_findings(run: TaggedRun, instances: Sequence[AttentionInstance], text: str) -> Iterator[Finding]:
    """Violations of the sums around attentions.

    Args:
        run: the run.
        instances: its attentions.
        text: the name and the documentation of what was called.
    """
    again = _added_again(run, instances) if len(instances) == 1 else None
    yield from _added_to_itself(run, instances)
    yield from _subtracted(run)
    if again is not None:
        message = "the input is added to what it was added to before: the residual is twice"
        yield Finding("violation", "residual-once", "block", message, again.location)
    if PRE_NORM.search(text):
        yield from _normalized_in_place(run, instances)
        yield from _added_behind_the_norm(run, instances)
    for instance in instances:
        lost = _lost(run, instance)
        if lost is not None:
            addend, what = (
                ("what the attention's was added to before", "what the attention added")
                if lost[1]
                else ("the attention's alone", "what that one was added to")
            )
            message = f"the feed-forward network's output is added to {addend}, and not to the sum: {what} is lost"
            yield Finding("violation", "residual-of-the-sum", "block", message, lost[0].location)
            return


def forgotten_findings(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """An attention to another sequence, whose output is added to something that holds nothing of the one before.

    The attention before was added to what it read, and the queries are made of that sum: then its output and all that
    stood there go no further than these queries. As in a decoder that adds to the memory, or to its first norm.

    Args:
        run: the run.
        instances: its attentions.
    """
    trace = run.trace
    given = trace.made_of(each.storage for each in trace.arguments.values())
    for first, second in itertools.pairwise(instances):
        attended = trace.made_of({each.operation.outputs[0].storage for each in first.sums})
        total = next((each for each in trace if is_joined(each, attended)), None)
        places = [place for each in second.scores for place in each.places]
        of_first = [trace.taken(each).storage in attended for each in places]
        values = [second.values_place(each) for each in second.sums]
        reads_first = any(trace.taken(each).storage in attended for each in values)
        if total is None or total.index > second.scores[0].operation.index or reads_first or not any(of_first):
            continue
        read = trace.made_of({each.operation.outputs[0].storage for each in second.sums})
        after = (each for each in trace.operations[second.sums[-1].operation.index + 1 :] if is_joined(each, read))
        added = next(after, None)
        if added is None:
            continue
        (other,) = (each for each in added.inputs if each.storage not in read)
        if other.storage in given - attended and not _goes_past(trace, total, second):
            message = (
                "what this attention read is added to something that holds nothing of the attention before, of which "
                "its queries are made: what that one added is lost but for them"
            )
            yield Finding("violation", "residual-of-the-sum", "block", message, added.location)
            return
        before = next(each for each in total.inputs if each.storage not in attended)
        late = _sum_without(run, added, before)
        if late is not None:
            message = (
                "the feed-forward network's output is added to what the first attention's was added to, and not to "
                "the sum that it reads: what both attentions added is lost"
            )
            yield Finding("violation", "residual-of-the-sum", "block", message, late.location)
            return


def _goes_past(trace: Trace, total: Operation, attention: AttentionInstance) -> bool:
    """Whether a sum reaches what is returned also past the scores of an attention, as one of several streams."""
    scores = {each.operation.index for each in attention.scores}
    others = [each for each in trace.operations[total.index + 1 :] if each.index not in scores]
    carried = reached({total.outputs[0].storage}, others)
    return any(each.storage in carried for each in trace.outputs)


def _added_to_itself(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """The input, or what an attention made, is added to itself."""
    first = min((int(each.min()) for each in run.given.values() if each.numel()), default=run.num_tags)
    attended = min((product.operation.index for each in instances for product in each.sums), default=len(run.trace))
    for operation in run.trace:
        if not is_sum(operation):
            continue
        one, two = run.tags.inputs[operation.index]
        if not one.numel() or not bool((one > 0).all()) or not torch.equal(one, two):
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


def _subtracted(run: TaggedRun) -> Iterator[Finding]:
    """The input, taken from what an attention or a feed-forward network made of it.

    The other way round its matrices can make up for the sign.
    """
    trace = run.trace
    products = {each.operation.index for each in run.products}
    for operation in trace:
        if operation.name.rstrip("_") != "sub" or len(operation.inputs) != 2:
            continue
        made, x = operation.inputs
        if made.shape != x.shape or made.data.ndim < 2 or made.storage == x.storage:
            continue
        before = trace.operations[: operation.index]
        carried = reached({x.storage}, [each for each in before if each.index not in products])
        if made.storage in reached({x.storage}, before) - carried:
            message = "the input is subtracted from what the block computed of it: the residual has the wrong sign"
            yield Finding("violation", "residual-added", "block", message, operation.location)
            return


def _added_again(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Operation | None:
    """The sum of x and of x + attention(x): both the attention and the code that calls it add the residual.

    Also of x and of a norm of that, where a norm and another residual follow, as in a layer; else x may go past it.
    """
    trace = run.trace
    sums = {each.operation.outputs[0].storage for instance in instances for each in instance.sums}
    attended = reached(sums, trace.operations)
    made: dict[int, Operation] = {}
    for operation in trace:
        if is_sum(operation):
            for x, total in (operation.inputs, reversed(operation.inputs)):
                before = made.get(total.storage)
                if before is None or x.storage in attended or x.shape != total.shape:
                    continue
                is_of_x = [_is_same(each, x) for each in before.inputs]
                other = before.inputs[is_of_x.index(False)] if is_of_x.count(True) == 1 else None
                is_ended = before.outputs[0].storage == total.storage or _is_normed_and_goes_on(trace, operation)
                if other is not None and other.storage in attended and other.shape == x.shape and is_ended:
                    return operation
        normed = made.get(operation.inputs[0].storage) if operation.name in LAYER_NORMS else None
        for record in (*operation.outputs, *operation.written):
            if not operation.is_view:
                made.pop(record.storage, None)
                if is_sum(operation):
                    made[record.storage] = operation
        if normed is not None:
            made[operation.outputs[0].storage] = normed
    return None


def _is_normed_and_goes_on(trace: Trace, total: Operation) -> bool:
    """Whether a norm alone reads a sum, and what it returns is added to something else."""
    later = trace.operations[total.index + 1 :]
    readers = [each for each in later if any(one.storage == total.outputs[0].storage for one in each.inputs)]
    if len(readers) != 1 or readers[0].name not in LAYER_NORMS:
        return False
    normed = readers[0].outputs[0].storage
    return any(is_sum(each) and normed in [one.storage for one in each.inputs] for each in later)


def _normalized_in_place(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A sum with an attention's output of what a norm has written into: the vector before the norm is gone."""
    trace, written = run.trace, dict[int, Operation]()
    attended = reached({each.operation.outputs[0].storage for one in instances for each in one.sums}, [*trace])
    for operation in trace:
        if operation.name in ("mul_", "div_") and operation.written and len(operation.inputs) == 2:
            into, factor = operation.written[0], operation.inputs[1]
            is_by_token = factor.data.ndim == into.data.ndim and factor.shape[-1] == 1 < into.shape[-1]
            if is_by_token and factor.storage in trace.made_of([into.storage]):
                written[into.storage] = operation
        elif is_sum(operation):
            before = [each for each in operation.inputs if each.storage not in attended]
            if len(before) == 1 and before[0].storage in written:
                message = (
                    "the norm writes into the vectors that it reads, which the attention's output is then added to: "
                    "the residual is normalized as well, in what is said to be a pre-norm block"
                )
                location = written[before[0].storage].location
                yield Finding("violation", "residual-before-norm", "block", message, location)
                return


def _added_behind_the_norm(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A sum of an attention's output with what a norm returned, where no other norm stands before the attention."""
    trace = run.trace
    normed = {each.outputs[0].storage: each for each in trace if each.name in LAYER_NORMS}
    for instance in instances:
        attended = trace.made_of({each.operation.outputs[0].storage for each in instance.sums})
        others, total = _summands(trace, attended)
        norm = next((normed[each] for each in others if each in normed), None)
        if total is None or norm is None or norm.index > instance.scores[0].operation.index:
            continue
        made = trace.made_of([norm.outputs[0].storage])
        between = trace.operations[norm.index + 1 : instance.scores[0].operation.index]
        if not any(each.name in LAYER_NORMS and each.inputs[0].storage in made for each in between):
            message = (
                "the attention's output is added to what the norm returned, and not to what it was given, in what is "
                "said to be a pre-norm block"
            )
            yield Finding("violation", "residual-before-norm", "block", message, total.location)
            return


def _summands(trace: Trace, attended: Collection[int]) -> tuple[list[int], Operation | None]:
    """The memory of all that an attention's output is added to in sums one after the other, and the last of these."""
    terms, total = dict[int, list[int]](), None
    for operation in filter(is_sum, trace):
        one, two = (each.storage for each in operation.inputs)
        is_of_it = is_joined(operation, attended)
        if total is None or (is_of_it and total.outputs[0].storage in (one, two)):
            terms[operation.outputs[0].storage] = [*terms.get(one, [one]), *terms.get(two, [two])]
            total = operation if is_of_it else total
    found = [] if total is None else terms[total.outputs[0].storage]
    return [each for each in found if each not in attended], total


def _lost(run: TaggedRun, instance: AttentionInstance) -> tuple[Operation, bool] | None:
    """The sum of a feed-forward network that reads x + attention(x) with one of the two, and whether that one is x.

    None where the sum with the attention goes on in any other way, or where there is no such sum.
    """
    trace = run.trace
    attended = reached({each.operation.outputs[0].storage for each in instance.sums}, trace.operations)
    for operation in trace.operations[instance.sums[-1].operation.index + 1 :]:
        if not is_sum(operation):
            continue
        before = [each for each in operation.inputs if each.storage not in attended]
        if len(before) == 1 and operation.outputs[0].storage != before[0].storage:
            for each in sorted(operation.inputs, key=lambda one: one is not before[0]):
                found = _sum_without(run, operation, each)
                if found is not None:
                    return found, each is before[0]
            return None
    return None


def _sum_without(run: TaggedRun, total: Operation, x: TensorRecord) -> Operation | None:
    """The sum of x and of a feed-forward network of a sum with x, before another attention reads that.

    None where that sum is a part of anything else.

    Args:
        run: the run.
        total: the sum with x.
        x: what is added to the attention's output, or that output.
    """
    trace = run.trace
    later = trace.operations[total.index + 1 :]
    products = {each.operation.index for each in run.products}
    carried = reached({total.outputs[0].storage}, [each for each in later if each.index not in products])
    network = reached({total.outputs[0].storage}, later)
    if any(each.storage in carried for each in trace.outputs):
        return None
    scores = {each.operation.index for each in run.bilinear}
    found, is_activated = None, False
    for operation in later:
        if operation.index in scores and any(each.storage in network for each in operation.inputs):
            return found  # another attention reads it: what is made of that is no feed-forward network
        if operation.name.rstrip("_") in ACTIVATIONS | IN_GELU:
            is_activated |= operation.inputs[0].storage in network - carried
        if not is_sum(operation) or operation.inputs[0].shape != x.shape:
            continue
        if any(each.storage in carried for each in operation.inputs):
            return None
        others = [each for each in operation.inputs if not _is_same(each, x)]
        if found is None and is_activated and len(others) == 1 and others[0].storage in network:
            found = operation
    return found


def _is_same(one: TensorRecord, other: TensorRecord) -> bool:
    return one.storage == other.storage and one.offset == other.offset and torch.equal(one.data, other.data)


def is_sum(operation: Operation) -> bool:
    """Whether it adds two tensors of the same shape."""
    return operation.is_addition and operation.inputs[0].shape == operation.inputs[1].shape


def is_joined(operation: Operation, some: Collection[int]) -> bool:
    """Whether it is a sum of something of some memory and of something else."""
    if not is_sum(operation):
        return False
    return (operation.inputs[0].storage in some) != (operation.inputs[1].storage in some)
