"""Residuals of one block: around each of its sublayers there is one, and each sublayer reads the sum before it.

Vaswani et al. 2017, "Attention Is All You Need", section 3.1: a residual goes around each of the sublayers.
Gulati et al. 2020, "Conformer" (arXiv:2005.08100), section 2.4: around each of four.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regard.check.properties.finding import Finding
from regard.check.properties.modules.norm_calls import NormCall, norm_calls, parent_of
from regard.check.properties.modules.residuals import ACTIVATIONS, IN_GELU, LAYER_NORMS, is_sum
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.roles.local import projections_of
from regard.check.trace.operation import Operation, TensorRecord, reached

__all__ = ["block_residual_findings"]

MOST = 3
"""Attentions of what is asked: more are layers of a stack."""
MODULATING = frozenset({"mul", "add", "addcmul"})
MATRICES = frozenset({"mm", "addmm", "bmm", "convolution"})


@dataclass(frozen=True, eq=False)
class _Residual:
    """A sum of a tensor and of what a matrix makes of it."""

    operation: Operation
    carried: TensorRecord
    branch: TensorRecord

    @property
    def total(self) -> int:
        """The memory of the sum."""
        return self.operation.outputs[0].storage


@dataclass(frozen=True, eq=False)
class _Block:
    """An attention of one sequence, and what stands around it."""

    run: TaggedRun
    instance: AttentionInstance
    norms: list[NormCall]
    residuals: list[_Residual]
    attended: set[int]
    """The memory of all that is made of its output."""
    given: set[int]
    """That of all that is made of what was handed over, and that itself."""
    read: TensorRecord
    """What queries, keys and values are made of."""
    start: int
    end: int

    def meets(self, operation: Operation, some: set[int]) -> bool:
        """Whether something of some memory meets anything else that is made of what was handed over.

        A gate that a condition makes for all tokens of a sample holds nothing of theirs.
        """
        taken = {each.storage for each in operation.inputs}
        others = [each for each in operation.inputs if each.storage in self.given - some]
        if operation.name.rstrip("_") in MODULATING and others:
            others = [each for each in others if each.shape == operation.outputs[0].shape]
        return bool(taken & some) and bool(others)

    @property
    def norm(self) -> NormCall | None:
        """That returns what it reads, or what a condition scales and shifts on the way, as in adaLN."""
        wanted = [self.read.storage]
        for operation in reversed(self.run.trace.operations[: self.start]):
            if operation.name.rstrip("_") in MODULATING and operation.outputs[0].storage == wanted[-1]:
                larger = [each for each in operation.inputs if each.shape == operation.outputs[0].shape]
                if len(larger) == 1:
                    wanted.append(larger[0].storage)
        return next((each for each in self.norms if each.returned in wanted), None)


def block_residual_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A sublayer whose residual is lost, where the others of its block keep theirs, or is there twice.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    if not 0 < len(instances) <= MOST:
        return
    norms, residuals = list(norm_calls(target, run.trace)), list(_residuals(run))
    for instance in instances:
        block = _block_of(run, instance, norms, residuals) if residuals else None
        if block is not None:
            found = (
                _attention_alone(block)
                or _network_alone(block)
                or _network_normed_alone(block)
                or _network_of_attention(block)
                or _added_twice(block)
            )
            if found is not None:
                yield found
                return


def _residuals(run: TaggedRun) -> Iterator[_Residual]:
    trace = run.trace
    for operation in trace:
        if not is_sum(operation) or operation.inputs[0].data.ndim < 3:
            continue
        for carried, branch in itertools.permutations(operation.inputs):
            before = trace.operations[: operation.index]
            products = {each.outputs[0].storage for each in before if each.name in MATRICES}
            made = reached({carried.storage}, before)
            if branch.storage in made and carried.storage not in reached({branch.storage}, before) and products & made:
                yield _Residual(operation, carried, branch)
                break


def _block_of(
    run: TaggedRun, instance: AttentionInstance, norms: list[NormCall], residuals: list[_Residual]
) -> _Block | None:
    """None of an attention that is not of one sequence, or of which that is not seen."""
    if any(is_sum(each) and each.written for each in run.trace):
        return None  # memory is no longer that of one tensor
    several = [each for each in projections_of(instance) if each.index < instance.scores[0].operation.index]
    copied, given = run.trace.originals(), run.trace.made_of(each.storage for each in run.trace.arguments.values())
    storages = {copied.get(one.storage, one.storage) for each in several for one in each.inputs if one.storage in given}
    if len(storages) != 1:
        return None
    (storage,) = storages
    made = (record for each in run.trace for record in (*each.outputs, *each.inputs) if record.storage == storage)
    whole = next((each for each in made if each.data.ndim > 2), None)
    if whole is None:
        return None
    sums = {each.operation.outputs[0].storage for each in instance.sums}
    attended = reached(sums, run.trace.operations[instance.sums[0].operation.index + 1 :])
    end = instance.sums[-1].operation.index
    return _Block(run, instance, norms, residuals, attended, given, whole, several[0].index, end)


def _attention_alone(block: _Block) -> Finding | None:
    """An attention that is added to nothing, and what comes next is."""
    trace = block.run.trace
    after = next(
        (
            each
            for each in block.residuals
            if each.operation.index > block.end and each.carried.storage in block.attended
        ),
        None,
    )
    if after is None or after.carried.shape != block.read.shape or not _is_around(after, block):
        return None
    if any(block.meets(each, block.attended) for each in trace.operations[block.end + 1 :]):
        return None
    beside = _one_before(block, after) or _one_behind(block, after)
    if not beside:
        return None
    message = (
        f"{beside} is added to what it reads, and the attention is not: the vector of the token itself is lost at it"
    )
    return Finding("violation", "residual-of-the-input", "block", message, block.instance.sums_location)


def _is_around(residual: _Residual, block: _Block) -> bool:
    """Whether a sum is computed by a module that the attention is a part of."""
    path = residual.operation.module
    return block.instance.module != path and (not path or block.instance.module.startswith(f"{path}."))


def _one_before(block: _Block, after: _Residual) -> str:
    """That the same module adds a sublayer before, and that the attention reads the sum, or a norm of it."""
    given = block.norm.given if block.norm is not None else block.read.storage
    for each in block.residuals:
        is_here = each.operation.module == after.operation.module and each.operation.index < block.start
        if is_here and each.total == given and each.carried.shape == after.carried.shape:
            return "what stands before the attention, and what stands behind it,"
    return ""


def _one_behind(block: _Block, after: _Residual) -> str:
    """That norms say where the sublayers are: one of what each of both reads, or one of what each of both makes."""
    for norm in block.norms:
        others = [
            each for each in block.norms if each.path != norm.path and parent_of(each.path) == parent_of(norm.path)
        ]
        if norm.first.index < block.end:
            if norm is block.norm and any(each.given == after.carried.storage for each in others):
                return "what reads the next norm"
        elif norm.returned == after.carried.storage and any(each.given == after.total for each in others):
            return "what stands behind the attention's norm"
    return ""


def _network_alone(block: _Block) -> Finding | None:
    """A network behind a norm of its own that is added to nothing, where the attention behind the other norm is."""
    trace, norm = block.run.trace, block.norm
    total = next((each for each in block.residuals if each.branch.storage in block.attended), None)
    if norm is None or total is None or total.carried.storage != norm.given or not _is_around(total, block):
        return None
    second = next((each for each in block.norms if each.given == total.total), None)
    if second is None or parent_of(second.path) != parent_of(norm.path) or second.path == norm.path:
        return None
    later = trace.operations[total.operation.index + 1 :]
    if any(each.module != second.path and total.total in {one.storage for one in each.inputs} for each in later):
        return None
    behind = trace.operations[second.last.index + 1 :]
    alone = reached({second.returned}, behind)
    if any(each.carried.storage in alone for each in block.residuals):
        return None  # it is added to what it reads, as where the norm is behind the attention as well (CCT)
    if not _is_network(alone, behind, total) or any(block.meets(each, alone) for each in behind):
        return None
    if not _is_returned(alone, block, total):
        return None
    message = (
        f"the attention behind {norm.path} is added to what that takes, and the network behind {second.path} is not: "
        "the vector of the token itself is lost"
    )
    return Finding("violation", "residual-of-the-input", "block", message, second.last.location)


def _is_network(made: set[int], operations: Sequence[Operation], total: _Residual) -> bool:
    """Whether of some memory a network makes something: two or three matrices, the first a widening one, and a bend."""
    matrices = (each for each in operations if each.name in MATRICES and each.inputs[-2].storage in made)
    widths = [each.outputs[0].shape[-1] for each in matrices]
    is_bent = any(
        each.name.rstrip("_") in ACTIVATIONS | IN_GELU and each.inputs[0].storage in made for each in operations
    )
    return is_bent and len(widths) in (2, 3) and widths[0] > total.carried.shape[-1]


def _is_returned(some: set[int], block: _Block, total: _Residual) -> bool:
    """Whether the call ends with something of some memory, as large as what the attention is added to."""
    returned = block.run.trace.outputs[0] if block.run.trace.outputs else None
    return returned is not None and returned.storage in some and returned.shape == total.carried.shape


def _network_normed_alone(block: _Block) -> Finding | None:
    """A norm that takes what a network returned alone, beside one of the same block that takes the attention's sum."""
    trace = block.run.trace
    total = next((each for each in block.residuals if each.branch.storage in block.attended), None)
    first = next((each for each in block.norms if total is not None and each.given == total.total), None)
    if total is None or first is None or parent_of(first.path) != total.operation.module:
        return None
    behind = trace.operations[first.last.index + 1 :]
    alone = reached({first.returned}, behind)
    last = next((each for each in block.norms if each.given in alone), None)
    if last is None or last.path == first.path or parent_of(last.path) != parent_of(first.path):
        return None
    later = trace.operations[total.operation.index + 1 :]
    if any(each.module != first.path and total.total in {one.storage for one in each.inputs} for each in later):
        return None  # the sum goes past the norm
    between = [each for each in behind if each.index < last.first.index]
    if not _is_network(alone, between, total) or not _is_returned({last.returned}, block, total):
        return None
    if any(block.meets(each, alone) for each in behind) or any(
        each.carried.storage in alone for each in block.residuals
    ):
        return None
    message = (
        f"{first.path} takes the sum of what the attention returned and what it read, and {last.path} what the network "
        "returned alone: the vector of the token itself is lost"
    )
    return Finding("violation", "residual-of-the-input", "block", message, last.first.location)


def _network_of_attention(block: _Block) -> Finding | None:
    """A network that reads the attention's output alone, and is added to the sum of that with what stood before."""
    trace = block.run.trace
    alone = {each.operation.outputs[0].storage for each in block.instance.sums}
    total: _Residual | None = None
    by_operation = {each.operation.index: each for each in block.residuals}
    of_total, streams, activated = set[int](), set[int](), set[int]()
    for operation in trace.operations[block.end + 1 :]:
        taken = {each.storage for each in operation.inputs}
        made = {each.storage for each in (*operation.outputs, *operation.written)}
        if total is None and operation.index in by_operation and taken & alone:
            total = by_operation[operation.index]
            if total.branch.storage not in alone:
                return None
            of_total = {total.total}
            streams = {total.total}
        elif total is not None and is_sum(operation) and taken & of_total and taken & activated:
            carried = next(each for each in operation.inputs if each.storage in of_total)
            if carried.storage not in streams or carried.shape != total.carried.shape:
                return None
            message = (
                "the feed-forward network reads what the attention returned alone, and is added to the sum of that "
                "with what the attention read: the network sees nothing of the token's own vector"
            )
            return Finding("violation", "residual-of-the-sum", "block", message, operation.location)
        elif total is not None and taken & of_total:
            of_total |= made
            streams |= {operation.outputs[0].storage} if operation.name in LAYER_NORMS else set()
            if not operation.is_view and operation.name not in LAYER_NORMS:
                return None  # the sum goes on in another way
        elif taken & alone:
            if block.meets(operation, alone):
                return None
            alone |= made
            is_bent = operation.name.rstrip("_") in ACTIVATIONS | IN_GELU
            activated |= made if (total is not None and is_bent) or taken & activated else set()
    return None


def _added_twice(block: _Block) -> Finding | None:
    """A sum of two sums of the same vectors, as of x + attention(x) and x + network(x), that nothing halves.

    Or of what a network behind a norm of the block reads with the sum of that and of what the network returns.
    """
    trace = block.run.trace
    by_total = {each.total: each for each in block.residuals}
    for operation in trace:
        if not is_sum(operation):
            continue
        one, two = (by_total.get(each.storage) for each in operation.inputs)
        carried = [None if each is None else each.carried.storage for each in (one, two)]
        is_twice = one is not two and None not in carried and carried[0] == carried[1]
        for record, other in zip(operation.inputs, (two, one), strict=True):
            is_of_network = other is not None and _is_behind_a_norm(block, other)
            is_twice |= is_of_network and other is not None and other.carried.storage == record.storage
        result = operation.outputs[0].storage
        takers = (each for each in trace if each.name.rstrip("_") in ("mul", "div") and not each.is_view)
        if is_twice and not any(each.storage == result for taker in takers for each in taker.inputs):
            message = "what a sublayer reads is added to its output twice: both sums hold the same vectors"
            return Finding("violation", "residual-once", "block", message, operation.location)
    return None


def _is_behind_a_norm(block: _Block, residual: _Residual) -> bool:
    """Whether a sum is of what a norm behind the attention takes, and of what a wide network makes of that norm."""
    norm = next((each for each in block.norms if each.given == residual.carried.storage), None)
    if norm is None or norm.first.index < block.end or residual.carried.storage not in block.attended:
        return False
    between = block.run.trace.operations[norm.last.index + 1 : residual.operation.index]
    made = reached({norm.returned}, between)
    first = next((each for each in between if each.name in MATRICES and each.outputs[0].storage in made), None)
    return first is not None and first.outputs[0].shape[-1] > residual.carried.shape[-1]
