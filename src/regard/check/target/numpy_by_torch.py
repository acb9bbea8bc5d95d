"""Code that computes with numpy, run by the functions of the same names of PyTorch: so that its steps are seen."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torch import Tensor

__all__ = ["as_array", "as_tensor", "numpy_by_torch"]

LIBRARIES = ("numpy", "torch", "scipy", "regard")


def as_array(tensor: Tensor) -> Any:
    """A tensor as one of PyTorch's arrays, which are called as those of numpy are."""
    return _functions().ndarray(tensor)


def as_tensor(value: Any) -> Any:
    """The tensor of such an array; anything else as it is."""
    functions = sys.modules.get("torch._numpy")
    return value.tensor if functions is not None and isinstance(value, functions.ndarray) else value


@contextlib.contextmanager
def numpy_by_torch(target: Any) -> Iterator[None]:
    """Inside, the code of a target, and of what it calls by name, finds PyTorch's functions where numpy's were."""
    functions = _functions()
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for names in _namespaces(target):
            for name, value in list(names.items()):
                other = _other(value, functions)
                if other is not None:
                    replaced.append((names, name, value))
                    names[name] = other
        yield
    finally:
        for names, name, value in replaced:
            names[name] = value


def _functions() -> Any:
    import torch._numpy  # it takes a while, and most code computes with tensors

    return torch._numpy


def _other(value: Any, functions: Any) -> Any:
    """PyTorch's of what is numpy's: the module, or a function that was imported from it; None of anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or isinstance(value, Tensor | type):
        return None
    if isinstance(value, ModuleType):
        return functions if value is numpy else None
    name = getattr(value, "__name__", None)
    is_its = isinstance(name, str) and callable(value) and getattr(numpy, name, None) is value
    return getattr(functions, name, None) if is_its and isinstance(name, str) else None


def _namespaces(target: Any) -> list[dict[str, Any]]:
    """What the names in the target's code mean, and in the code of functions of other files that it names."""
    while isinstance(target, functools.partial):
        target = target.func
    target = getattr(target, "__func__", target)
    kinds = () if inspect.isfunction(target) else type(target).__mro__
    functions = [target, *(each for kind in kinds for each in vars(kind).values())]
    found = {id(names): names for each in functions if (names := _names_of(each)) is not None}
    for names in list(found.values()):
        for each in list(names.values()):
            others = _names_of(each)
            if others is not None:
                found.setdefault(id(others), others)
    return list(found.values())


def _names_of(function: Any) -> dict[str, Any] | None:
    """What the names in a function mean; None of what is none, or a library's."""
    if not inspect.isfunction(function) or str(function.__module__).partition(".")[0] in LIBRARIES:
        return None
    return function.__globals__
