"""Code that computes with numpy, run by the functions of the same names of PyTorch: so that its steps are seen."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from torch import Tensor, from_numpy

__all__ = [
    "as_array",
    "as_tensor",
    "is_array",
    "kept_objects",
    "names_numpy",
    "names_short_floats",
    "numpy_by_torch",
    "with_its_arrays",
]

LIBRARIES = ("numpy", "torch", "scipy", "regard")
TUPLES = ("tril_indices", "triu_indices", "tril_indices_from", "triu_indices_from")
"""Functions of places, whose rows and columns PyTorch returns as one array: this would choose whole rows."""
GENERATORS = ("RandomState", "default_rng")
"""Of numpy's random numbers."""

SHORT_FLOATS = frozenset({"float32", "single", "float16", "half"})


def is_array(value: object) -> bool:
    """Whether it is an array of numpy, which is imported where there is one."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def as_array(tensor: Tensor) -> Any:
    """A tensor as one of PyTorch's arrays, which are called as those of numpy are."""
    return _functions().ndarray(tensor)


def as_tensor(value: Any) -> Any:
    """The tensor of such an array; anything else as it is."""
    functions = sys.modules.get("torch._numpy")
    return value.tensor if functions is not None and isinstance(value, functions.ndarray) else value


def names_numpy(target: Any, depth: int = 1) -> bool:
    """Whether the code of a function, a method or an object's class names numpy, or functions of its file that do.

    Or the classes of the objects that are kept by the object itself, or that a method belongs to.
    """
    kept = {type(each) for each in kept_objects(getattr(target, "__self__", target))}
    members = [*_members(target), *(each for kind in kept for each in vars(kind).values())]
    for each in filter(inspect.isfunction, members):
        for value in (each.__globals__.get(name) for name in each.__code__.co_names):
            is_beside = inspect.isfunction(value) and value.__module__ == each.__module__
            if _is_of_numpy(value) or (is_beside and depth and names_numpy(value, depth - 1)):
                return True
    return False


def names_short_floats(target: Any) -> bool:
    """Whether the code of a target, or a function of a file that it is written in, names float32 or shorter floats."""
    beside = (value for names in _namespaces(target) for value in list(names.values()) if _names_of(value) is not None)
    several = [each.__code__ for each in (*_members(target), *beside) if inspect.isfunction(each)]
    while several:
        code = several.pop()
        if SHORT_FLOATS & {*code.co_names}:
            return True
        several += [each for each in code.co_consts if isinstance(each, CodeType)]
    return False


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


def with_its_arrays(target: Any) -> Any:
    """The target, whose own arrays and numbers, and those of the objects that it keeps, are made PyTorch's."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return target
    for each in list(kept_objects(getattr(target, "__self__", target))):
        parts = each if isinstance(each, dict | list) else vars(each)
        for key, value in list(parts.items() if isinstance(parts, dict) else enumerate(parts)):
            if type(value) is numpy.ndarray and value.dtype.kind in "fiub":
                parts[key] = as_array(from_numpy(value.copy()))
            elif isinstance(value, numpy.generic) and value.dtype.kind in "fiub":
                parts[key] = value.item()  # PyTorch's functions know no numbers of numpy's types
    return target


def kept_objects(target: Any) -> Iterator[Any]:
    """An object of the user's own, the lists and dicts in it, and all further ones that these keep."""
    front, seen = [target], set[int]()
    while front:
        each = front.pop()
        is_own = not isinstance(each, type) and type(each).__module__.partition(".")[0] not in (*LIBRARIES, "builtins")
        parts = each if isinstance(each, dict | list) else vars(each) if is_own and hasattr(each, "__dict__") else None
        if parts is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        front += parts.values() if isinstance(parts, dict) else parts


@functools.cache
def _functions() -> Any:
    """A module with PyTorch's functions, less where these return what numpy's do not."""
    import torch._numpy  # it takes a while, and most code computes with tensors

    found = ModuleType("numpy")
    found.__dict__.update({name: value for name, value in vars(torch._numpy).items() if not name.startswith("__")})
    found.__dict__.update({name: _as_tuple(getattr(torch._numpy, name)) for name in TUPLES})
    found.__dict__["random"] = _random_functions(found.__dict__["random"])
    return found


def _random_functions(known: ModuleType) -> ModuleType:
    """PyTorch's `numpy.random`, with the generators that it lacks."""
    import numpy as np

    found = ModuleType("numpy.random")
    found.__dict__.update(vars(known))
    for name in GENERATORS:
        found.__dict__[name] = functools.partial(_drawing, getattr(np.random, name))
    return found


def _drawing(kind: Any, *args: Any, **kwargs: Any) -> _Generator:
    return _Generator(kind(*args, **kwargs))


class _Generator:
    """A generator of numpy, which draws PyTorch's arrays."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._generator, name)

        @functools.wraps(method)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            value = method(*args, **kwargs)
            return as_array(from_numpy(value)) if is_array(value) else value

        return drawn if callable(method) else method


def _as_tuple(function: Any) -> Any:
    return lambda *args, **kwargs: tuple(function(*args, **kwargs))


def _other(value: Any, functions: Any) -> Any:
    """PyTorch's of what is numpy's: the module, or a function that was imported from it; None of anything else."""
    if not _is_of_numpy(value):
        return None
    return functions if isinstance(value, ModuleType) else getattr(functions, value.__name__, None)


def _is_of_numpy(value: Any) -> bool:
    """Whether it is numpy, or a function that was imported from it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or isinstance(value, Tensor | type):
        return False
    if isinstance(value, ModuleType):
        return value is numpy
    name = getattr(value, "__name__", None)
    return isinstance(name, str) and callable(value) and getattr(numpy, name, None) is value


def _namespaces(target: Any) -> list[dict[str, Any]]:
    """What the names in the target's code mean, and in the code of functions of other files that it names."""
    found = {id(names): names for each in _members(target) if (names := _names_of(each)) is not None}
    for names in list(found.values()):
        for each in list(names.values()):
            others = _names_of(each)
            if others is not None:
                found.setdefault(id(others), others)
    return list(found.values())


def _members(target: Any) -> list[Any]:
    """A function itself, or what the classes of an object define."""
    while isinstance(target, functools.partial):
        target = target.func
    target = getattr(target, "__func__", target)
    kinds = () if inspect.isfunction(target) else type(target).__mro__
    return [target, *(each for kind in kinds for each in vars(kind).values())]


def _names_of(function: Any) -> dict[str, Any] | None:
    """What the names in a function mean; None of what is none, or a library's."""
    if not inspect.isfunction(function) or str(function.__module__).partition(".")[0] in LIBRARIES:
        return None
    return function.__globals__
