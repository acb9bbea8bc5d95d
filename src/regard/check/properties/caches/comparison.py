"""A new token with a cache of the tokens before it, beside all of them at once, operation by operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.check.target.cache_runs import CachedCall
from regard.check.trace.operation import Operation, Trace
from regard.check.trace.recorder import record

__all__ = [
    "EQUAL",
    "RESTARTED",
    "SAME",
    "UNKNOWN",
    "PartOfWhole",
    "by_line",
    "line_key",
    "place_of",
    "recorded",
    "same_tensor",
]

SAME = 1e-9
"""Of the largest number of a tensor."""
EQUAL, RESTARTED, OTHER, UNKNOWN = "equal", "restarted", "other", "unknown"
Place = tuple[tuple[Any, ...], int, int]
"""An operation by its name and line, which of those it is, and which of its tensors."""


@dataclass(eq=False)
class PartOfWhole:
    """Two runs of the same tokens: all at once with an empty cache, and the last token with a cache of the others."""

    whole: Trace
    part: Trace
    first: int
    end: int

    def compared(self, whole: Tensor, part: Tensor) -> str:
        """Whether a tensor of the part is the last token's rows of the whole's, or those of the first token."""
        if whole.ndim != part.ndim or whole.dtype != part.dtype:
            return UNKNOWN
        axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != part.shape[axis]]
        count = self.end - self.first
        if any((whole.shape[axis], part.shape[axis]) != (self.end, count) for axis in axes):
            return UNKNOWN
        last, start = whole, whole
        for axis in axes:
            last, start = last.narrow(axis, self.first, count), start.narrow(axis, 0, count)
        if same_tensor(last, part):
            return EQUAL
        return RESTARTED if axes and same_tensor(start, part) else OTHER

    def tensors(self, place: Place) -> tuple[Tensor, Tensor] | None:
        """What an operation takes in both runs."""
        key, which, number = place
        found = []
        for trace in (self.whole, self.part):
            several = by_line(trace)[key]
            if which >= len(several) or number >= len(several[which].inputs):
                return None
            found.append(several[which].inputs[number].data)
        return found[0], found[1]

    def departures(self) -> Iterator[tuple[str, Operation, Operation]]:
        """The operations whose results differ, in the order of the run."""
        whole, part = by_line(self.whole), by_line(self.part)
        number: dict[tuple[Any, ...], int] = defaultdict(int)
        for operation in self.part:
            key = line_key(operation)
            which = number[key]
            number[key] += 1
            if len(whole[key]) != len(part[key]) or not operation.outputs:
                continue
            other = whole[key][which]
            if not other.outputs:
                continue
            said = self.compared(other.outputs[0].data, operation.outputs[0].data)
            if said in (RESTARTED, OTHER):
                yield said, other, operation


def recorded(call: CachedCall, cuts: list[tuple[int, int]]) -> Trace:
    """The last part of a call."""

    def run(watch: Any) -> Any:
        *_, (result, _) = call.parts(cuts, watch=watch)
        return result

    return record(run, outputs=call.invocation.outputs, lines=True)


def line_key(operation: Operation) -> tuple[Any, ...]:
    """What an operation is known by in another run."""
    line = operation.location
    return operation.name, line and (line.file, line.line), operation.module


def by_line(trace: Trace) -> dict[tuple[Any, ...], list[Operation]]:
    """The operations of a run by what they are known by."""
    found: dict[tuple[Any, ...], list[Operation]] = defaultdict(list)
    for operation in trace:
        found[line_key(operation)].append(operation)
    return found


def place_of(trace: Trace, place: tuple[int, int]) -> Place:
    """The same of one of its tensors."""
    index, number = place
    key = line_key(trace.operations[index])
    return key, [each.index for each in by_line(trace)[key]].index(index), number


def same_tensor(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and, but for rounding, the same numbers."""
    if one.shape != other.shape or not one.numel():
        return one.shape == other.shape
    if one.dtype == torch.bool or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    same = (one == other) | ((one - other).abs() <= SAME * max(1.0, float(one.abs().nan_to_num(posinf=0.0).max())))
    return bool((same | (one.isnan() & other.isnan())).all())
