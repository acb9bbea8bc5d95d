"""Gates: one matrix behind an activation, times another one beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from regard.check.properties.code import code_of
from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Finding
from regard.check.properties.modules.residuals import ACTIVATIONS
from regard.check.roles.instances import TaggedRun
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["added_gate_findings", "gated_activation_findings", "half_gate_findings", "squashed_twice_findings"]

_SWIGLU = re.compile(r"swi-?glu|silu[- ]gated", re.I)
_GATED = re.compile(r"(?:(?<![a-z])gat|Gat)(?:e[sd]?|ing)(?![a-z])")
"""A word of a name as well, as in AttentionGated."""
MOVED = frozenset({"_to_copy", "_unsafe_view", "cat", "clone", "stack"})
"""Operations behind which numbers are the same, at other places or in another precision."""
SWISH = frozenset({"silu", "sigmoid"})
"""Operations that swish is computed with: x sigmoid(x), where it is written by hand."""


def gated_activation_findings(target: Any, run: TaggedRun) -> Iterator[Finding]:
    """A network that is said to be SwiGLU, in which no product of swish(x W) and x V is.

    Shazeer 2020, "GLU Variants Improve Transformer", equation 6.

    Args:
        target: what was called.
        run: its run.
    """
    several = list(target.modules()) if isinstance(target, nn.Module) else [target]
    if not any(_SWIGLU.search(name_and_documentation(each)) for each in several):
        return
    if any(_is_gate(each, run) for each in run.trace):
        return
    bent = next((each for each in run.trace if each.name.rstrip("_") in SWISH), None)
    message = (
        "it is said to be SwiGLU, and nothing multiplies swish(x W) by x V: one matrix behind swish, one beside it"
    )
    yield Finding("violation", "gate-as-documented", "block", message, None if bent is None else bent.location)


def added_gate_findings(target: Any, base: Trace) -> Iterator[Finding]:
    """A sigmoid that is added to a tanh, in code that speaks of gates: it has to be multiplied by it.

    Ilse et al. 2018, "Attention-based Deep Multiple Instance Learning", equation 9.

    Args:
        target: what was called.
        base: its run.
    """
    made = dict[int, str]()
    for operation in base:
        name = operation.name.rstrip("_")
        added = {made.get(each.storage) for each in operation.inputs} if operation.is_addition else set()
        if added == {"sigmoid", "tanh"} and _GATED.search(code_of(target)):
            message = "the sigmoid of a gate is added to what it shall let through, and not multiplied by it"
            yield Finding("violation", "gate-as-documented", "block", message, operation.location)
            return
        made.update((each.storage, name) for each in operation.outputs if not operation.is_view)


def squashed_twice_findings(base: Trace) -> Iterator[Finding]:
    """A sigmoid of a sigmoid, as where a layer ends in one and whoever calls it takes another.

    Of a number from 0 to 1 it is one from 0.5 to 0.731.

    Args:
        base: a run.
    """
    squashed = set[tuple[int, int, tuple[int, ...]]]()
    for operation in base:
        is_squashed = bool(operation.inputs) and all(_part(each) in squashed for each in operation.inputs)
        if is_squashed and operation.name.rstrip("_") == "sigmoid":
            message = "a sigmoid is taken of what a sigmoid returned: it lies between 0.5 and 0.731, and never closes"
            yield Finding("violation", "squashed-once", "output", message, operation.location)
            return
        written = {each.storage for each in operation.written}
        squashed -= {each for each in squashed if each[0] in written}
        is_moved = (operation.is_view and not operation.written) or operation.name in MOVED
        if operation.name.rstrip("_") == "sigmoid" or (is_squashed and is_moved):
            squashed.update(map(_part, operation.outputs))


def _part(record: TensorRecord) -> tuple[int, int, tuple[int, ...]]:
    """Which part of some memory a tensor is: the gates of a recurrent layer lie side by side."""
    return record.storage, record.offset, record.shape


def half_gate_findings(base: Trace) -> Iterator[Finding]:
    """One half of what a matrix makes, times the same half behind an activation, where nothing reads the other half.

    Shazeer 2020, "GLU Variants Improve Transformer", equation 5: two matrices, here one for both, each have a side.

    Args:
        base: a run.
    """
    for operation in base:
        if operation.name.rstrip("_") != "mul" or len(operation.inputs) != 2:
            continue
        for half, bent in (operation.inputs, operation.inputs[::-1]):
            other = _other_half(half)
            makes = next((each for each in base if any(one.storage == bent.storage for one in each.outputs)), None)
            if other is None or makes is None or makes.name.rstrip("_") not in {*ACTIVATIONS, *SWISH}:
                continue
            if not _is_same_part(makes.inputs[0], half) or _is_read(base, half.storage, other):
                continue
            message = (
                "one half of what a matrix makes is multiplied by itself behind an activation, and nothing reads the "
                "other half, which was to be the gate or what it lets through"
            )
            yield Finding("violation", "gate-of-the-other-half", "block", message, operation.location)
            return


def _other_half(half: TensorRecord) -> int | None:
    """The offset of the other half of the vectors that a tensor has one half of; None of what is no such half."""
    width = half.shape[-1] if half.data.ndim > 1 else 0
    if width < 2 or half.stride[-1] != 1 or half.stride[-2] != 2 * width:
        return None
    return half.offset + (width if half.offset % (2 * width) == 0 else -width)


def _is_same_part(one: TensorRecord, other: TensorRecord) -> bool:
    return (one.storage, one.offset, one.shape, one.stride) == (other.storage, other.offset, other.shape, other.stride)


def _is_read(base: Trace, storage: int, offset: int) -> bool:
    """Whether anything reads vectors of some memory from an offset on, or from its beginning as a whole."""
    reads = [
        one
        for operation in base
        if not operation.is_view or operation.is_in_place
        for one in operation.inputs
        if one.storage == storage
    ]
    returned = [each for each in base.outputs if each.storage == storage]
    return any(each.offset == offset or _other_half(each) is None for each in (*reads, *returned))


def _is_gate(operation: Operation, run: TaggedRun) -> bool:
    """Whether it multiplies what swish made of some numbers by others, which no swish has bent."""
    if operation.name.rstrip("_") != "mul" or len(operation.inputs) != 2:
        return False
    bent = _bent(run, operation.index)
    sides = [each.storage in bent for each in operation.inputs]
    if sides.count(True) != 1:
        return False
    tags = run.tags.inputs[operation.index]
    if any(bool(each.any()) for each in tags):
        return not torch.equal(*tags)
    # Where no number was followed so far, as behind a first layer, two results are not the same by their tags.
    read = {record.storage for each in run.trace if each.name.rstrip("_") in SWISH for record in each.inputs}
    return operation.inputs[sides.index(False)].storage not in read


def _bent(run: TaggedRun, end: int) -> set[int]:
    """The memory of what swish made, up to an operation: of its last step, and of what that is multiplied by."""
    found = set[int]()
    for operation in run.trace.operations[:end]:
        is_swish = operation.name.rstrip("_") in SWISH
        is_by_hand = operation.name == "mul" and {each.storage for each in operation.inputs} & found
        if is_swish or is_by_hand:
            found.update(each.storage for each in operation.outputs)
    return found
