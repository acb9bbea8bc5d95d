"""Gates of a condition: they stand on what a sublayer returns, and not on what that is added to.

Peebles and Xie 2022, "Scalable Diffusion Models with Transformers" (arXiv:2212.09748), section 3.2: adaLN-Zero begins
as the identity, since each of its gates multiplies a branch and begins as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard.check.properties.finding import Finding
from regard.check.properties.modules.modulations import SPLITS, is_of, numbers_of
from regard.check.properties.modules.norm_calls import norm_calls
from regard.check.properties.modules.residuals import LAYER_NORMS, is_sum
from regard.check.roles.instances import TaggedRun
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["gated_stream_findings", "normed_by", "products_of", "splits_in"]

PARTS = (3, 6)
"""A shift, a scale and a gate, of one sublayer or of two."""


def gated_stream_findings(target: Any, run: TaggedRun) -> Iterator[Finding]:
    """A gate that multiplies what a norm of its block takes, where another part of the projection scales that norm.

    What it makes is added to what a sublayer returns without a gate; or it multiplies that sum.

    Args:
        target: what was called.
        run: the run.
    """
    trace = run.trace
    splits = splits_in(trace)
    normed, taken = normed_by(target, trace) if splits else (set(), set())
    for split in splits:
        several = [products_of(trace, split, each) for each in split.outputs]
        if not any(each.given.storage in normed for one in several for each in one):
            continue
        gated = {each.operation.outputs[0].storage for one in several for each in one}
        for number, products in enumerate(several):
            found = next((each for each in products if each.is_plain and _is_a_stream(trace, each, taken, gated)), None)
            if found is not None:
                message = (
                    f"part {number} (counted from 0) of the {len(split.outputs)} that are made of the condition "
                    "multiplies the vectors that a sublayer's output is added to, and not that output: where the gate "
                    "is closed, the token's own vector is lost"
                )
                yield Finding("violation", "gate-of-the-branch", "block", message, found.operation.location)
                return


def splits_in(trace: Trace) -> list[Operation]:
    """Where what is made of a condition is split in shifts, scales and gates."""
    return [each for each in trace if each.name in SPLITS and len(each.outputs) in PARTS and each.inputs[0].learned]


def normed_by(target: Any, trace: Trace) -> tuple[set[int], set[int]]:
    """The memory of what the norms return, and of what they take."""
    calls = list(norm_calls(target, trace))
    normed = {each.outputs[0].storage for each in trace if each.name in LAYER_NORMS} | {each.returned for each in calls}
    taken = {each.inputs[0].storage for each in trace if each.name in LAYER_NORMS} | {each.given for each in calls}
    return normed, taken


@dataclass(frozen=True, eq=False)
class _Product:
    """Of a part of the condition with a larger tensor."""

    operation: Operation
    given: TensorRecord
    is_plain: bool
    """Whether the part is as it was, and not added to 1."""


def products_of(trace: Trace, split: Operation, part: TensorRecord) -> list[_Product]:
    """The products of a part, or of what is made of it alone, with larger tensors."""
    numbers, derived, found = numbers_of(part), set[int](), list[_Product]()
    for operation in trace.operations[split.index + 1 :]:
        if operation.is_view and not operation.written:
            continue
        are_its = [each.storage in derived or is_of(each, part, numbers, False) for each in operation.inputs]
        if not any(are_its):
            continue
        if operation.outputs[0].data.numel() <= part.data.numel():
            if all(is_its or each.data.numel() == 1 for is_its, each in zip(are_its, operation.inputs, strict=True)):
                derived.update(each.storage for each in operation.outputs)
        elif operation.name.rstrip("_") == "mul" and are_its.count(True) == 1 == are_its.count(False):
            its, other = operation.inputs[are_its.index(True)], operation.inputs[are_its.index(False)]
            found.append(_Product(operation, other, its.storage not in derived))
    return found


def _is_a_stream(trace: Trace, product: _Product, taken: set[int], gated: set[int]) -> bool:
    """Whether a gate multiplies a stream that a sublayer without a gate is added to, or the sum of both."""
    given, result = product.given, product.operation.outputs[0].storage
    maker = next(
        (each for each in trace if not each.is_view and given.storage in {one.storage for one in each.outputs}), None
    )
    if maker is not None and is_sum(maker):
        one, other = maker.inputs
        for stream, branch in ((one, other), (other, one)):
            if stream.storage in taken and branch.storage in trace.made_of([stream.storage]) - gated:
                return True
    if given.storage not in taken:
        return False
    total = next((each for each in trace.operations[product.operation.index + 1 :] if _adds(each, result)), None)
    if total is None:
        return False
    (branch,) = (each for each in total.inputs if each.storage != result)
    return branch.storage in trace.made_of([given.storage]) - gated - {given.storage}


def _adds(operation: Operation, storage: int) -> bool:
    return is_sum(operation) and [each.storage for each in operation.inputs].count(storage) == 1
