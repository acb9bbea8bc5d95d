"""The attentions of one call: its softmaxes, each with the product before it and the one after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from regard.check.trace.operation import Operation, Trace, axis_of

__all__ = ["AttentionCore", "attention_cores"]

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices by their names in ATen, and where their left operand stands."""
SOFTMAXES = ("_softmax", "_safe_softmax", "_log_softmax")
SUM_TOLERANCE = 1e-9
"""Of the sum of weights that no softmax of PyTorch's made."""


@dataclass(eq=False)
class AttentionCore:
    """Scores, weights and weighted sum of one softmax."""

    left: Tensor
    """(slices, rows, width): one operand of the scores' product."""
    right: Tensor
    """(slices, rows, width): the other one."""
    logits: Tensor
    """What the softmax reads, keys last; the logarithm of the weights where it is not PyTorch's."""
    weights: Tensor
    """Keys last."""
    values: Tensor
    """(slices, keys, width)."""
    summed: Tensor
    """(slices, queries, width): the weighted sum."""
    summed_at: int
    """The place of the weighted sum in the trace."""
    summed_shape: tuple[int, ...]
    """As that product returns it."""
    summed_transposed: bool
    """Whether that product made (slices, width, queries)."""


def attention_cores(trace: Trace) -> list[AttentionCore]:
    """Every attention of a call; none where its products were not found."""
    return [*_Cores(trace).found()]


class _Cores:
    """The operations of a call with their order of dependence."""

    def __init__(self, trace: Trace) -> None:
        self.operations = trace.operations
        self.parents: list[list[int]] = []
        """For each tensor that each operation takes, what touched its memory last."""
        last: dict[int, int] = {}
        for operation in trace:
            self.parents.append([last.get(each.storage, -1) for each in operation.inputs])
            touched = (*operation.outputs, *operation.written)
            last.update(dict.fromkeys((each.storage for each in touched), operation.index))

    def found(self) -> Iterator[AttentionCore]:
        """Every attention."""
        for operation in self.operations:
            axis = self._axis(operation)
            core = None if axis is None else self._core(operation, axis)
            if core is not None:
                yield core

    def _axis(self, operation: Operation) -> int | None:
        """Along which axis what an operation returns sums to one; None of what is no softmax."""
        if operation.name in SOFTMAXES:
            return axis_of(operation.function, operation.args, operation.kwargs)
        if operation.name not in ("div", "true_divide", "mul"):
            return None
        output = operation.outputs[0].data
        if output.ndim < 2 or not output.is_floating_point() or bool((output < 0).any()):
            return None
        if not any(self.operations[each].name in ("exp", "exp_") for each in self._ancestors([operation.index])):
            return None
        sums = (
            axis
            for axis in (-1, -2)
            if output.shape[axis] > 1 and bool(((output.sum(axis) - 1).abs() <= SUM_TOLERANCE).all())
        )
        return next(sums, None)

    def _core(self, operation: Operation, axis: int) -> AttentionCore | None:
        output = operation.outputs[0].data
        output = output.exp() if operation.name == "_log_softmax" else output
        near = [
            (each.outputs[0].data.numel(), each.index)
            for each in map(self.operations.__getitem__, self._ancestors(self.parents[operation.index]))
            if each.name in PRODUCTS and each.outputs[0].data.numel() <= output.numel()
        ]
        after = self._next_product(operation.index)
        if not near or after is None:
            return None
        (left, right), _ = self._product(max(near)[1])  # with a sink it is smaller
        (first, second), summed = self._product(after[0])
        is_left = after[1] == 0
        logits = operation.inputs[0].data if operation.name in SOFTMAXES else output.log()
        return AttentionCore(
            left,
            right.transpose(1, 2),
            logits.movedim(axis, -1),
            output.movedim(axis, -1),
            second if is_left else first.transpose(1, 2),
            summed if is_left else summed.transpose(1, 2),
            after[0],
            self.operations[after[0]].outputs[0].shape,
            not is_left,
        )

    def _product(self, at: int) -> tuple[list[Tensor], Tensor]:
        """The operands of a product, and what it made, each with an axis of slices."""
        operation = self.operations[at]
        tensors = [*operation.inputs[PRODUCTS[operation.name] :], operation.outputs[0]]
        *operands, made = (each.data if each.data.ndim == 3 else each.data[None] for each in tensors)
        return operands, made

    def _ancestors(self, start: list[int]) -> list[int]:
        """Operations that lead to some, not beyond products, in their order."""
        reached: set[int] = set()
        todo = list(start)
        while todo:
            at = todo.pop()
            if at < 0 or at in reached:
                continue
            reached.add(at)
            if self.operations[at].name not in PRODUCTS:
                todo += self.parents[at]
        return sorted(reached)

    def _next_product(self, at: int) -> tuple[int, int] | None:
        """The first product that reads what an operation made, and which of its operands it is."""
        reached = {at}
        for operation in self.operations[at + 1 :]:
            parents = self.parents[operation.index]
            if not reached.intersection(parents):
                continue
            if operation.name in PRODUCTS:
                first = PRODUCTS[operation.name]
                for which, parent in enumerate(parents[first : first + 2]):
                    if parent in reached:
                        return operation.index, which
            reached.add(operation.index)
        return None
