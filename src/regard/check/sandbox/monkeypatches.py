"""Functions that the check computes with, and that somebody's code replaced by its own: then no number can be trusted.

It notices what files do by accident or for their own ends, such as a debugging version of ``torch.equal``. What an
installed package replaces, in Python, is trusted. Code that runs in the same interpreter and means to deceive can hide
from it.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import itertools
import json
import math
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

__all__ = ["watch_bindings"]

SPACES: tuple[ModuleType | type, ...] = (
    builtins,
    copy,
    inspect,
    itertools,
    json,
    json.JSONEncoder,
    math,
    torch,
    torch.Tensor,
    torch.autograd,
    torch.linalg,
    torch.nn.Module,
    torch.nn.functional,
)
"""What the check computes with, beside regard itself."""
MAY_CHANGE = frozenset(
    {"scaled_dot_product_attention", "multi_head_attention_forward", "compile", "__repr__", "__str__", "__format__"}
)
"""What the definition does not use: files replace it to plug in an attention of their own, or to print tensors in
another way; and Lightning replaces torch.compile."""
INSTALLED = str(Path(torch.__file__).parents[1])
"""The folder of installed packages: torch.compile brings another torch.manual_seed, and torch_geometric a
torch.index_select that takes its own tensors too."""

Binding = tuple[object, object]
"""What a name means: a value, and that one's code if it is a function."""


def watch_bindings() -> Callable[[], str | None]:
    """Remember what each name means now that the check computes with.

    Returns:
        A function that says which name means something else by now, as it is written in code; None if none does. It
        reads nothing that an assignment can replace.
    """
    modules = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    names = _names_used(tuple(modules)) - MAY_CHANGE
    spaces = (*SPACES, *_ours(modules))
    before = [(space, _named(space), _bindings(space, names), _hidden(space, names)) for space in spaces]
    loaded, of, get, installed = sys.modules, vars, getattr, INSTALLED

    def replaced() -> str | None:
        for name, module in modules.items():
            if loaded.get(name) is not module:
                return name
        for space, called, bindings, hidden in before:
            now = of(space)
            for name, (value, code) in bindings.items():
                new = now.get(name)
                new_code = get(new, "__code__", None)
                if (new is not value or new_code is not code) and not _is_installed(new_code, installed):
                    return f"{called}.{name}"
            for name in hidden:
                if name in now:
                    return f"{called}.{name}"
        return None

    return replaced


def _bindings(space: ModuleType | type, names: Container[str]) -> dict[str, Binding]:
    """The functions of a module or class that are used."""
    return {
        name: (value, getattr(value, "__code__", None))
        for name, value in vars(space).items()
        if _is_function(value) and _is_used(name, space, names)
    }


def _hidden(space: ModuleType | type, names: Container[str]) -> frozenset[str]:
    """Names of builtins or functions of base classes that the space does not have: bound there, they would be first.

    Python itself writes data into classes, such as ``__annotations__`` when somebody reads them.
    """
    bases: Iterable[Any] = space.__mro__[1:] if isinstance(space, type) else [builtins]
    return frozenset(
        name
        for base in bases
        for name, value in vars(base).items()
        if _is_function(value) and name not in vars(space) and _is_used(name, space, names)
    )


def _is_function(value: object) -> bool:
    return callable(value) or isinstance(value, property)


def _is_used(name: str, space: ModuleType | type, names: Container[str]) -> bool:
    """Whether the check's code has the name, or uses it without a name, as operators are."""
    return name in names or (isinstance(space, type) and name[:2] == "__" and name not in MAY_CHANGE)


def _is_installed(code: object, installed: str) -> bool:
    """Whether an installed package put a function there, as for tensors of its own kind."""
    return isinstance(code, CodeType) and code.co_filename.startswith(installed)


@cache
def _names_used(modules: tuple[str, ...]) -> frozenset[str]:
    """Every name in the code of some modules."""
    several: list[CodeType] = []
    for name in modules:
        spec = sys.modules[name].__spec__
        if spec is None:
            continue
        loader: Any = spec.loader
        if spec.origin is not None and spec.origin.endswith(".py"):
            # Loaders of a test run have no code to show (pytest's), or would write the code that they alter into the
            # cache that holds Python's own (jaxtyping's).
            loader = SourceFileLoader(name, spec.origin)
        if hasattr(loader, "get_code"):
            several.append(loader.get_code(name))
    names: set[str] = set()
    while several:
        code = several.pop()
        names.update(code.co_names)
        several += [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(names)


def _is_ours(name: str) -> bool:
    return name == "regard" or name.startswith(("regard.check", "regard.attention", "regard.errors"))


def _named(space: ModuleType | type) -> str:
    return space.__name__ if isinstance(space, ModuleType) else f"{space.__module__}.{space.__qualname__}"


def _ours(modules: Mapping[str, ModuleType]) -> Iterator[ModuleType | type]:
    """Modules and the classes that are written in them."""
    for name, module in modules.items():
        yield module
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == name:
                yield value
