"""What PyTorch computes inside one call: its products and softmaxes, and which made which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.check.trace.fused_attention import FUSED, attention_by_steps

__all__ = ["AttentionCore", "OperationRecorder", "attention_cores", "plain_kernels"]

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices by their names in ATen, and where their left operand stands."""
SOFTMAXES = ("_softmax", "_safe_softmax", "_log_softmax")
SUM_TOLERANCE = 1e-9
"""Of the sum of weights that no softmax of PyTorch's made."""

Replacement = Callable[[int, Tensor], Tensor | None]
"""Takes the number of a product and what it made; returns what shall stand in its place, or None."""


@dataclass(eq=False)
class Operation:
    """A product or a softmax, or anything between them."""

    name: str
    parents: tuple[int, ...]
    """The operations that made its inputs, by their place in the record."""
    inputs: tuple[Tensor, ...] = ()
    """Of products, softmaxes and quotients: as they were."""
    input_parents: tuple[tuple[int, ...], ...] = ()
    """For each of these inputs, the operations that made it."""
    output: Tensor | None = None
    axis: int = -1
    """Of softmaxes: which axis sums to one."""


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the operations of a call with their order of dependence."""

    def __init__(self, replacement: Replacement | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._replacement = replacement
        self._made_by: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._alive: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch.compile, whose import takes seconds, is to be told that it has nothing to do here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record it."""
        kwargs = dict(kwargs or {})
        if func is FUSED:  # where the code itself chose a kernel
            with self:
                return attention_by_steps(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        by_input = tuple(self._makers(each) for each in inputs)
        operation = Operation(name, tuple(sorted({one for each in by_input for one in each})))
        if name in PRODUCTS or name in SOFTMAXES or name in ("div", "mul", "true_divide"):
            first = PRODUCTS.get(name, 0)
            operation.inputs = tuple(each.detach().clone() for each in inputs[first:])
            operation.input_parents = by_input[first:]
        result = func(*args, **kwargs)
        at = len(self.operations)
        if name in PRODUCTS and self._replacement is not None:
            replaced = self._replacement(at, result)
            result = result if replaced is None else replaced
        if operation.inputs:
            operation.output = result.detach().clone()
        if name in SOFTMAXES:
            operation.axis = next(each for each in args[1:] if isinstance(each, int))
            if name == "_log_softmax":
                operation.output = result.exp()
        self.operations.append(operation)
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self._made_by[id(each)] = at
                self._alive.append(each)
                if func._schema.is_mutable:  # also seen through every view of the same numbers
                    self._written[each.untyped_storage().data_ptr()] = at
        return result

    def _makers(self, tensor: Tensor) -> tuple[int, ...]:
        by = (self._made_by.get(id(tensor)), self._written.get(tensor.untyped_storage().data_ptr()))
        return tuple(dict.fromkeys(each for each in by if each is not None))


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, fused attentions are computed step by step."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


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
    """The place of the weighted sum in the record."""
    summed_transposed: bool
    """Whether that product made (slices, width, queries)."""


def attention_cores(operations: list[Operation]) -> list[AttentionCore]:
    """Every attention of a call; none where its products were not found."""
    cores = []
    for at, operation in enumerate(operations):
        if _is_softmax(operations, at):
            core = _core(operations, at, operation)
            if core is not None:
                cores.append(core)
    return cores


def _is_softmax(operations: list[Operation], at: int) -> bool:
    operation = operations[at]
    if operation.name in SOFTMAXES:
        return True
    output = operation.output
    if operation.name not in ("div", "true_divide", "mul") or output is None or output.ndim < 2:
        return False
    if not output.is_floating_point() or bool((output < 0).any()):
        return False
    if not any(operations[each].name in ("exp", "exp_") for each in _ancestors(operations, (at,))):
        return False
    for axis in (-1, -2):
        if output.shape[axis] > 1 and bool(((output.sum(axis) - 1).abs() <= SUM_TOLERANCE).all()):
            operation.axis = axis
            return True
    return False


def _core(operations: list[Operation], at: int, operation: Operation) -> AttentionCore | None:
    assert operation.output is not None
    weights = operation.output.movedim(operation.axis, -1)
    near = [
        each
        for each in _ancestors(operations, operation.parents)
        if operations[each].name in PRODUCTS and _numel(operations[each]) <= operation.output.numel()
    ]
    if not near:
        return None
    product = operations[max(near, key=lambda each: (_numel(operations[each]), each))]  # with a sink it is smaller
    after = _next_product(operations, at)
    if after is None:
        return None
    summed, which = operations[after[0]], after[1]
    left, right = (_sliced(each) for each in product.inputs[:2])
    first, second = (_sliced(each) for each in summed.inputs[:2])
    assert summed.output is not None
    output = _sliced(summed.output)
    logits = operation.output.log() if operation.name not in SOFTMAXES else operation.inputs[0]
    return AttentionCore(
        left,
        right.transpose(1, 2),
        logits.movedim(operation.axis, -1),
        weights,
        second if which == 0 else first.transpose(1, 2),
        output if which == 0 else output.transpose(1, 2),
        after[0],
        which == 1,
    )


def _numel(operation: Operation) -> int:
    return 0 if operation.output is None else operation.output.numel()


def _sliced(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 3 else tensor[None]


def _ancestors(operations: list[Operation], start: tuple[int, ...]) -> list[int]:
    """Operations that lead to some, not beyond products, in their order."""
    reached: set[int] = set()
    todo = list(start)
    while todo:
        at = todo.pop()
        if at in reached:
            continue
        reached.add(at)
        if operations[at].name not in PRODUCTS:
            todo += operations[at].parents
    return sorted(reached)


def _next_product(operations: list[Operation], at: int) -> tuple[int, int] | None:
    """The first product that reads the weights, and which of its operands they are."""
    reached = {at}
    for number in range(at + 1, len(operations)):
        operation = operations[number]
        if not reached.intersection(operation.parents):
            continue
        if operation.name in PRODUCTS:
            for which, parents in enumerate(operation.input_parents[:2]):
                if reached.intersection(parents):
                    return number, which
        reached.add(number)
    return None
