"""Follow single numbers through copies, views and elementwise operations: which number of a product became which.

A tag is the number of an element of some earlier result, counted from 1; 0 is "none of them". Tags are kept by memory,
as the numbers themselves are, so that a view and what is written through it need no rule of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from regard.check.trace.operation import CHOICES, Operation, TensorRecord, Trace, axis_of

__all__ = ["SOFTMAXES", "TaggedTrace", "behind_others", "moves_numbers", "tagged"]

SOFTMAXES = frozenset({"_softmax", "_safe_softmax", "_log_softmax"})

PADDED = "constant_pad_nd"
COPIES = frozenset(
    [
        "cat",
        "stack",
        "index",
        "index_select",
        "gather",
        "repeat",
        "repeat_interleave",
        "clone",
        PADDED,
        "flip",
        "roll",
        "select_scatter",
        "slice_scatter",
        "tril",
        "triu",
        "index_put",
        "index_copy",
        "scatter",
        "masked_select",
        "take",
        "unfold_copy",
        "_to_copy",
        "lift_fresh_copy",
        "pixel_shuffle",
        "pixel_unshuffle",
        "im2col",
    ]
)
"""Operations that move numbers and change none: done again, on the tags."""
REDUCTIONS = frozenset(
    [
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "prod",
        "logsumexp",
        "var",
        "std",
        "var_mean",
        "norm",
        "linalg_vector_norm",
        "argmax",
        "argmin",
        "cumsum",
        "any",
        "all",
        "nansum",
    ]
)
"""Operations whose results are of many numbers."""
SUMMED = frozenset(["sum", "mean"])
"""Of these, those that return a number as it is where it stands alone."""
ANEW = frozenset(["ones_like", "rand_like", "randn_like"])
"""Operations that take of a tensor its axes alone."""
FILLED_ANEW = frozenset(["full_like", "zeros_like"])
"""The same, where nothing is written into them later: some scores often are, and then they are what is written over."""
SCATTERS = frozenset(["index_copy", "index_put", "masked_scatter", "scatter", "select_scatter", "slice_scatter"])
"""Operations that write into a copy of their first tensor."""
FILLS = frozenset(["copy", "fill", "index_put"])
"""Operations that may write one number over some of those of a tensor."""
MOST_STACKED = 4
"""Results that are stacked to be summed: of content and of positions."""
OVERWRITES = frozenset(["copy", "fill", "zero", "normal", "uniform", "random"])
"""In-place operations that leave nothing of what was there."""


@dataclass(eq=False)
class TaggedTrace:
    """The tags of what each operation takes and returns."""

    inputs: list[list[Tensor]] = field(default_factory=list)
    """By operation, by tensor argument; shaped as it."""
    outputs: list[list[Tensor]] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)
    """Of the tensors that the run returned."""
    sums: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Pairs of tags whose numbers were added to one another; the first of each went on."""
    through: list[int] = field(default_factory=list)
    """Operations that were asked for the tags of what they return, and had some."""
    imaginary: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """By operation and tensor argument, the tags of the imaginary parts of complex numbers; `inputs` has the others."""


@dataclass(eq=False)
class _Sums:
    """The sums of tagged numbers, and which tags go on."""

    pairs: list[tuple[Tensor, Tensor]]
    preferred: Tensor
    """By tag, whether it goes on in a sum, wherever it stands; of all others the first one does."""
    starts: Tensor
    """The first tag of each operation whose numbers are followed, in order."""

    def of(self, tags: Tensor, spread: Tensor, added: Tensor) -> Tensor:
        """The tags of a sum of tagged numbers.

        Args:
            tags: of what stands first.
            spread: of the other one.
            added: which numbers of that are more than zeros.
        """
        both = (tags > 0) & (spread > 0) & added
        if not bool(both.any()):
            return tags
        swapped = both & self.preferred[spread] & ~self.preferred[tags]
        kept, lost = torch.where(swapped, spread, tags), torch.where(swapped, tags, spread)
        earlier = _summed_with(lost[both], self.pairs)  # lost may be a sum itself
        earlier += _summed_with(tags[both], self.pairs) if bool(swapped.any()) else []
        known = _distinct(_summed_with(kept[both], self.pairs))  # a recurrence adds the same again in every step
        several = _distinct([lost[both], *earlier])
        self.pairs += [(kept[both], each) for key, each in several.items() if key not in known]
        return kept


class _Memory:
    """The tags of what lies in memory."""

    def __init__(self) -> None:
        self._storages: dict[int, Tensor] = {}

    def _view(self, record: TensorRecord) -> tuple[Tensor, tuple[int, ...], int]:
        unit = 2 if record.data.is_complex() else 1
        stride = tuple(unit * each for each in record.stride)
        offset = unit * record.offset
        last = sum((size - 1) * step for size, step in zip(record.shape, stride, strict=True) if size)
        needed = offset + last + unit
        held = self._storages.get(record.storage)
        if held is None or len(held) < needed:
            grown = torch.zeros(needed, dtype=torch.long)
            if held is not None:
                grown[: len(held)] = held
            self._storages[record.storage] = held = grown
        return held, stride, offset

    def read(self, record: TensorRecord, *, imaginary: bool = False) -> Tensor:
        if record.data.numel() == 0:
            return torch.zeros(record.shape, dtype=torch.long)
        held, stride, offset = self._view(record)
        return held.as_strided(record.shape, stride, offset + (imaginary and record.data.is_complex())).clone()

    def write(self, record: TensorRecord, tags: Tensor, imaginary: Tensor | None = None) -> None:
        if record.data.numel() == 0:
            return
        held, stride, offset = self._view(record)
        if 0 in stride:  # expanded memory holds one number for many elements
            for axis, step in enumerate(stride):
                if step == 0:
                    tags = tags.narrow(axis, 0, 1)
            held.as_strided(tuple(tags.shape), stride, offset).copy_(tags)
            return
        held.as_strided(record.shape, stride, offset).copy_(tags)
        if record.data.is_complex():
            held.as_strided(record.shape, stride, offset + 1).copy_(tags if imaginary is None else imaginary)


def tagged(
    trace: Trace,
    sources: Mapping[int, Tensor],
    arguments: Mapping[str, Tensor] | None = None,
    passing: Mapping[int, Callable[[list[list[Tensor]]], Tensor | None]] | None = None,
    preferred: Sequence[int] = (),
) -> TaggedTrace:
    """Follow the results of some operations through a run.

    Args:
        trace: the run.
        sources: by the index of an operation, the tags of its first output.
        arguments: by name, the tags of a tensor that the run was given.
        passing: by the index of an operation, the tags of its first output by those of all that was taken until then;
            where it gives None, the operation is a source, or like all others.
        preferred: the operations whose tags go on where something stands before them in a sum.
    """
    memory, result = _Memory(), TaggedTrace()
    last = max(
        (int(each.max()) for each in (*sources.values(), *(arguments or {}).values()) if each.numel()), default=0
    )
    starts = torch.tensor(sorted(int(each.min()) for each in sources.values() if each.numel()), dtype=torch.long)
    sums = _Sums(result.sums, torch.zeros(last + 1, dtype=torch.bool), starts)
    for index in preferred:
        sums.preferred[sources[index].flatten()] = True
    for name, tags in (arguments or {}).items():
        memory.write(trace.arguments[name], tags)
    for operation in trace:
        given = [memory.read(each) for each in operation.inputs]
        for number, record in enumerate(operation.inputs):
            if record.data.is_complex():
                result.imaginary[operation.index, number] = memory.read(record, imaginary=True)
        passed = passing[operation.index]([*result.inputs, given]) if passing and operation.index in passing else None
        if passed is not None or operation.index in sources:
            target = operation.outputs[0]
            memory.write(target, (sources[operation.index] if passed is None else passed).reshape(target.shape))
            if passed is not None:
                result.through.append(operation.index)
            for extra in operation.outputs[1:]:
                memory.write(extra, torch.zeros(extra.shape, dtype=torch.long))
        elif operation.written:
            after = _after_write(operation, given, memory, sums)
            memory.write(operation.written[0], after)
        elif operation.name in FILLED_ANEW and not _is_written_into(trace, operation):
            memory.write(operation.outputs[0], torch.zeros(operation.outputs[0].shape, dtype=torch.long))
        elif operation.name in SUMMED and _is_of_a_new_axis(trace, operation):
            memory.write(operation.outputs[0], given[0].reshape(operation.outputs[0].shape))
        elif not operation.is_view:
            for number, output in enumerate(operation.outputs):
                tags = _computed(operation, given, output, number, sums)
                if output.data.is_complex():
                    other = [memory.read(each, imaginary=True) for each in operation.inputs]
                    memory.write(
                        output, tags, _computed(operation, other, output, number, _Sums([], sums.preferred, starts))
                    )
                else:
                    memory.write(output, tags)
        result.inputs.append(given)
        result.outputs.append([memory.read(each) for each in operation.outputs])
    result.returned = [memory.read(each) for each in trace.outputs]
    return result


def _computed(operation: Operation, given: list[Tensor], output: TensorRecord, number: int, sums: _Sums) -> Tensor:
    """The tags of a new tensor."""
    nothing = torch.zeros(output.shape, dtype=torch.long)
    if not any(bool(each.any()) for each in given):
        return nothing
    if operation.name in COPIES:
        if _masks(operation, given):
            return given[0]
        again = _again(operation, given)
        return again if again is not None and again.shape == nothing.shape else nothing
    if operation.name in CHOICES and number == 0:
        axis = axis_of(operation.function, operation.args, operation.kwargs)
        assert axis is not None  # topk and sort have one
        return given[0].gather(axis, operation.outputs[1].data)
    if moves_numbers(operation):
        _, weights, _, *settings = operation.args
        made: Tensor = operation.function(given[0].double(), weights.data.double(), None, *settings)
        return made.round().long()
    if operation.name == "sum" and (stacked := _of_stacked(operation, given[0], output.shape, sums)) is not None:
        return stacked
    if operation.name in REDUCTIONS or operation.name in ANEW or number > 0:
        return nothing
    if operation.name == "where" and len(given) == 3:
        chosen, left = (
            torch.where(operation.inputs[0].data, one, other)
            for one, other in ((given[1], given[2]), (given[2], given[1]))
        )
        return torch.where(chosen > 0, chosen, left).broadcast_to(output.shape).clone()
    return _elementwise(operation, given, output.shape, sums)


def _is_written_into(trace: Trace, operation: Operation) -> bool:
    """Whether a later operation writes into what one made, as scores into a row of fills."""
    (made,) = operation.outputs
    return any(
        each.storage == made.storage
        for later in trace.operations[operation.index + 1 :]
        for each in (*later.written, *(later.inputs[:1] if later.name in SCATTERS else ()))
    )


def _is_of_a_new_axis(trace: Trace, operation: Operation) -> bool:
    """Whether it sums over nothing but axes of one, where a view of what it takes has just put some.

    Any other axis may be as short by accident, as that of the last of several chunks.
    """
    taken = operation.inputs[0]
    made = next(
        (each for each in reversed(trace.operations[: operation.index]) if taken.storage in _storages(each)), None
    )
    return (
        taken.data.numel() == operation.outputs[0].data.numel()
        and made is not None
        and made.is_view
        and made.outputs[0].shape.count(1) > made.inputs[0].shape.count(1)
    )


def _storages(operation: Operation) -> set[int]:
    return {each.storage for each in (*operation.outputs, *operation.written)}


def moves_numbers(operation: Operation) -> bool:
    """Whether it is a convolution whose filters take a single number each, as it is, as one that cuts out windows."""
    if operation.name != "convolution" or operation.args[2] is not None:
        return False
    weights = operation.inputs[1].data.flatten(1)
    return bool(((weights != 0).sum(1) == 1).all() & (weights.sum(1) == 1).all())


def _of_stacked(operation: Operation, given: Tensor, shape: tuple[int, ...], sums: _Sums) -> Tensor | None:
    """The tags of a sum of several results of one shape that were stacked; None of all other sums."""
    axes = operation.args[1] if len(operation.args) > 1 else None
    if not isinstance(axes, list | tuple) or len(axes) != 1 or given.shape[axes[0]] > MOST_STACKED:
        return None
    first, *others = given.unbind(axes[0])
    if not others or not first.numel() or bool((given == 0).any()) or first.numel() != math.prod(shape):
        return None
    owners = torch.searchsorted(sums.starts, given.contiguous(), right=True)
    made_by = [torch.unique(each) for each in owners.unbind(axes[0])]
    if any(len(each) > 1 for each in made_by) or len(torch.unique(torch.cat(made_by))) < len(made_by):
        return None
    for each in others:
        first = sums.of(first, each, torch.ones_like(each, dtype=torch.bool))
    return first.reshape(shape)


def _elementwise(operation: Operation, given: list[Tensor], shape: tuple[int, ...], sums: _Sums) -> Tensor:
    """Those of the first tensor that has some; where it has none, of the next one; of a factor of many, last."""
    tags = torch.zeros(shape, dtype=torch.long)
    pairs = zip(operation.inputs, given, strict=True)
    is_product, size = operation.name.rstrip("_") in ("mul", "div"), math.prod(shape)
    for record, each in sorted(
        pairs, key=lambda pair: pair[0].data.numel() < size if is_product else not pair[0].shape
    ):
        if record.data.dtype == torch.bool or not bool(each.any()):
            continue
        try:
            spread = each.broadcast_to(shape)
        except RuntimeError:
            continue
        if operation.name.rstrip("_") in ("add", "sub") and bool(tags.any()):
            tags = sums.of(tags, spread, _is_added(record, shape))
        tags = torch.where(tags > 0, tags, spread)
    return tags


def _summed_with(tags: Tensor, sums: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """What some tags were summed with."""
    return [other for before, other in sums if torch.equal(before, tags)]


def _distinct(several: list[Tensor]) -> dict[bytes, Tensor]:
    """Those that differ, by their numbers."""
    return {each.numpy().tobytes(): each for each in several}


def _is_added(record: TensorRecord, shape: tuple[int, ...]) -> Tensor:
    """Which numbers of a sum are more than a zero; all, where there are only zeros: learned ones may begin so."""
    numbers = record.data != 0
    return numbers.broadcast_to(shape) if bool(numbers.any()) else torch.ones(shape, dtype=torch.bool)


def _after_write(operation: Operation, given: list[Tensor], memory: _Memory, sums: _Sums) -> Tensor:
    """The tags of a tensor that was written into."""
    target = operation.written[0]
    name = operation.name.rstrip("_")
    if _masks(operation, given):
        return given[0]
    if name == "copy":
        return given[1].broadcast_to(target.shape)
    if name in OVERWRITES:
        return torch.zeros(target.shape, dtype=torch.long)
    if name in COPIES:
        again = _again(operation, given)
        return again if again is not None and again.shape == target.data.shape else memory.read(target)
    return _elementwise(operation, given, target.shape, sums)


def _masks(operation: Operation, given: list[Tensor]) -> bool:
    """Whether it writes one number over some of the others: -inf over scores, which stay the scores of their tokens."""
    if operation.name.rstrip("_") == "scatter" and not isinstance(operation.args[3], TensorRecord):
        return True
    if operation.name.rstrip("_") not in FILLS:
        return False
    written = operation.inputs[1:]
    return not written or (written[-1].data.numel() == 1 and not bool(given[-1].any()))


def _again(operation: Operation, given: list[Tensor]) -> Tensor | None:
    """What the operation makes of tags instead of numbers; as floats, which have them exactly, where it needs such."""
    for dtype in (torch.long, torch.float64):
        left = iter([each.to(dtype, copy=True) for each in given])  # it may write into them

        def replaced(value: Any, left: Iterator[Tensor] = left) -> Any:
            if not isinstance(value, TensorRecord):
                return value
            tags = next(left)
            return value.data if value.data.dtype in (torch.bool, torch.long, torch.int32) and not tags.any() else tags

        args, kwargs = tree_map(replaced, (operation.args, operation.kwargs))
        kwargs = {name: value for name, value in kwargs.items() if name not in ("dtype", "memory_format", "device")}
        args = args[:2] if operation.name == PADDED else args  # with zeros: the number that it pads with is no tag
        try:
            result = operation.function(*args, **kwargs)
        except (RuntimeError, TypeError, IndexError, NotImplementedError):
            continue
        return result.long() if isinstance(result, Tensor) else None
    return None


def behind_others(trace: Trace, tags: TaggedTrace, scores: set[int], first: Mapping[int, int]) -> list[int]:
    """The products of queries and keys that a softmax takes behind others that they were added to.

    Args:
        trace: the run.
        tags: of the run, in which the first of two summands goes on: a query times a learned vector may be it.
        scores: the indices of the products of queries and keys.
        first: by the index of an operation, the tag of its first number.
    """

    def are_of(index: int, several: Tensor) -> Tensor:
        start = first[index]
        return (several >= start) & (several < start + trace.operations[index].outputs[0].data.numel())

    taken = [tags.inputs[each.index][0] for each in trace if each.name in SOFTMAXES]
    found = set()
    for kept, lost in tags.sums if taken else ():
        if any(bool(are_of(index, kept).any()) for index in scores):
            continue
        behind = {index for index in scores if bool(are_of(index, lost).all())}
        found |= behind if behind and any(bool(torch.isin(kept, each).any()) for each in taken) else set()
    return sorted(found)
