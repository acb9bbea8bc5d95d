"""What one run computed: every operation with its tensors, its line and its module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.check.location import CodeLocation

__all__ = ["CHOICES", "Operation", "TensorRecord", "Trace", "axis_of", "reached"]

CHOICES = frozenset({"topk", "sort"})
"""Operations that return some of the numbers that they take along an axis, in another order, and their places."""
COPIES = frozenset({"clone", "_unsafe_view"})
"""Operations whose output has the numbers of what they take, in their order."""


def axis_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The axis that an operation of PyTorch's core is told, or its default; None for all axes at once."""
    at, known = next(each for each in enumerate(function._schema.arguments) if each[1].name == "dim")
    axis: int | None = kwargs.get("dim", args[at] if at < len(args) else known.default_value)
    return axis


def reached(start: Iterable[int], operations: Iterable[Operation]) -> set[int]:
    """The memory of what some operations made of what is in some memory, and that itself."""
    found = set(start)
    for operation in operations:
        if any(each.storage in found for each in operation.inputs):
            found.update(each.storage for each in (*operation.outputs, *operation.written))
    return found


@dataclass(eq=False, slots=True)
class TensorRecord:
    """A tensor as it was when an operation took or returned it: its numbers, and where they lie in memory."""

    data: Tensor
    """Its shape is the tensor's; copied when something is written into its memory."""
    storage: int
    """Tensors with the same number share memory."""
    stride: tuple[int, ...]
    offset: int
    """In elements of its dtype."""
    learned: bool = False
    """Whether it is a parameter, or made of one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size along each axis."""
        return tuple(self.data.shape)


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of PyTorch's core (aten)."""

    index: int
    """Its place in the run, from 0."""
    name: str
    """Of the operation, as "bmm" or "_softmax"."""
    function: Callable[..., Any]
    """PyTorch's own, to compute it again on other tensors."""
    args: tuple[Any, ...]
    """Its arguments; a `TensorRecord` for each tensor."""
    kwargs: dict[str, Any]
    inputs: tuple[TensorRecord, ...]
    """The tensors among its arguments, in their order."""
    outputs: tuple[TensorRecord, ...]
    written: tuple[TensorRecord, ...]
    """Arguments that it wrote into, as they were afterwards."""
    location: CodeLocation | None = None
    """The innermost line of code that is neither PyTorch's nor this library's."""
    module: str = ""
    """The path of the innermost module that ran it; empty for the whole."""

    @property
    def is_view(self) -> bool:
        """Whether its first output lies in the memory of its first input."""
        return bool(self.inputs and self.outputs) and self.outputs[0].storage == self.inputs[0].storage

    @property
    def is_in_place(self) -> bool:
        """Whether it changes its first input and returns it, as ``masked_fill_``: what else it takes is read."""
        return self.is_view and self.name.endswith("_")

    @property
    def is_addition(self) -> bool:
        """Whether it adds two tensors, in place or not."""
        return self.name.rstrip("_") == "add" and len(self.inputs) == 2


@dataclass(eq=False)
class Trace:
    """One run."""

    operations: list[Operation] = field(default_factory=list)
    outputs: list[TensorRecord] = field(default_factory=list)
    """The tensors that it returned."""
    arguments: dict[str, TensorRecord] = field(default_factory=dict)
    """The tensors that it was given, by the name of the argument; those of a tuple as "name[0]"."""
    error: str = ""
    """Where the run raised: the exception; what it computed until then is kept."""

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    def taken(self, place: tuple[int, int]) -> TensorRecord:
        """What an operation takes: by its index, and the number among its tensors."""
        return self.operations[place[0]].inputs[place[1]]

    def made_of(self, storages: Iterable[int]) -> set[int]:
        """Some memory, and that of all that was computed of what lies in it."""
        return reached(storages, self)

    def computed_of(self, operations: Iterable[int], held: Collection[int]) -> set[int]:
        """The operations that compute with what some return, not through those whose results are held."""
        first, found = set(operations), set[int]()
        made = {each.storage for index in first for each in self.operations[index].outputs}
        for operation in self:
            if operation.index not in held and any(each.storage in made for each in operation.inputs):
                made.update(each.storage for each in (*operation.outputs, *operation.written))
                found.add(operation.index)
        return found

    def computed_for(self, operations: Iterable[int], held: Collection[int]) -> set[int]:
        """Some operations and all that what they take is computed by, not through those whose results are held."""
        found, needed = set(operations), set[int]()
        for operation in reversed(self.operations):
            results = {each.storage for each in (*operation.outputs, *operation.written)}
            if operation.index in found or (operation.index not in held and results & needed):
                needed.update(each.storage for each in operation.inputs)
                found.add(operation.index)
        return found

    def originals(self) -> dict[int, int]:
        """By the memory of a copy, that of what was copied."""
        found = dict[int, int]()
        for each in self:
            if each.name in COPIES:
                found[each.outputs[0].storage] = found.get(each.inputs[0].storage, each.inputs[0].storage)
        return found

    def only_chooses(self, storages: Iterable[int], *, after: int = -1) -> bool:
        """Whether what is made of some memory is of use for its places alone, those of its largest numbers.

        An indexer (DeepSeek-V3.2, arXiv:2512.02556) scores keys with a product of weights and ReLU scores, and the
        places of the largest say which keys the attention beside it may see.

        Args:
            storages: the memory.
            after: the index of an operation that wrote it.
        """
        made, chooses = set(storages), False
        for operation in self.operations[after + 1 :]:
            if any(one.storage in made for one in operation.inputs):
                chooses = chooses or operation.name in CHOICES
                results = () if operation.name in CHOICES else (*operation.outputs, *operation.written)
                made.update(one.storage for one in results if one.data.is_floating_point())
        return chooses and not any(one.storage in made for one in self.outputs)

    def same_operations(self, other: Trace) -> bool:
        """Whether another run took the same steps."""
        return len(self) == len(other) and all(
            a.name == b.name and len(a.outputs) == len(b.outputs) for a, b in zip(self, other, strict=True)
        )
