"""Copies of functions that a module keeps: what such a function closes over is that of the copy, not the original."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

__all__ = ["ClosureCopies"]


class ClosureCopies:
    """The functions that the attributes of modules hold, each with cells of its own.

    `copy.deepcopy` shares functions: one that closes over a module, as `self.mlp = lambda x: m.act(m.linear(x))`, would
    call the parts of the original, which keep their dtype and their mode, whatever becomes of the copy.
    """

    def __init__(self, known: dict[int, Any]) -> None:
        """Begin with what stands for an object in the copy, by the object's id: the memo of `copy.deepcopy`."""
        self._known = known
        self._originals: list[types.FunctionType] = []

    def remember(self, function: types.FunctionType) -> None:
        """Let another function stand for this one in the copy, where it holds modules or their tensors."""
        if id(function) in self._known or not _holds_modules(function):
            return
        cells = []
        for cell in function.__closure__ or ():
            cells.append(self._known.setdefault(id(cell), types.CellType()))
        other = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, tuple(cells))
        other.__qualname__, other.__module__, other.__doc__ = (
            function.__qualname__,
            function.__module__,
            function.__doc__,
        )
        other.__annotations__ = function.__annotations__
        vars(other).update(vars(function))
        self._known[id(function)] = other
        self._originals.append(function)
        for value in _values_of(function):
            if isinstance(value, types.FunctionType):
                self.remember(value)

    def fill(self) -> None:
        """Hand over to the new functions what the copy has in the place of what the old ones hold; it is made now."""
        for function in self._originals:
            other = self._known[id(function)]
            other.__defaults__ = self._of_copy(function.__defaults__)
            other.__kwdefaults__ = self._of_copy(function.__kwdefaults__)
            for cell in function.__closure__ or ():
                try:
                    self._known[id(cell)].cell_contents = self._of_copy(cell.cell_contents)
                except ValueError:  # nothing is assigned to it yet
                    continue

    def _of_copy(self, value: Any) -> Any:
        if id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self._of_copy(value.__self__))
        if type(value) in (list, tuple):
            return type(value)(self._of_copy(each) for each in value)
        if type(value) is dict:
            return {name: self._of_copy(each) for name, each in value.items()}
        return value


def _values_of(function: types.FunctionType) -> Iterator[Any]:
    """What a function holds: of the scopes around it, and as defaults."""
    for cell in function.__closure__ or ():
        try:
            yield from _flat(cell.cell_contents)
        except ValueError:  # nothing is assigned to it yet
            continue
    yield from _flat(function.__defaults__ or ())
    yield from _flat(function.__kwdefaults__ or {})


def _flat(value: Any) -> Sequence[Any]:
    if type(value) in (list, tuple):
        return list(value)
    return list(value.values()) if type(value) is dict else [value]


def _holds_modules(function: types.FunctionType) -> bool:
    """Whether a module, or a tensor, is held by a function, or by a function that it holds."""
    found, open_ones = {id(function)}, [function]
    while open_ones:
        for value in _values_of(open_ones.pop()):
            owner = value.__self__ if isinstance(value, types.MethodType) else value
            if isinstance(owner, nn.Module | Tensor):
                return True
            if isinstance(value, types.FunctionType) and id(value) not in found:
                found.add(id(value))
                open_ones.append(value)
    return False
