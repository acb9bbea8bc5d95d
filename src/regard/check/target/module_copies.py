"""Copies of modules without the detours of `copy.deepcopy`: a module's dict holds mostly numbers, texts and nothing."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import nn

__all__ = ["DICTS", "SHARED", "copy_modules"]

SHARED = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Kinds of attributes that a copy shares, as `copy.deepcopy` does."""
DICTS = (dict, OrderedDict)
"""Kinds of what a module keeps its parameters, buffers, parts and hooks in."""
PLAIN_STATES = (nn.Module.__setstate__, nn.modules.conv._ConvNd.__setstate__)
"""Methods that take the state of a module as it is."""


def copy_modules(modules: Iterable[nn.Module], known: dict[int, Any]) -> None:
    """Put copies of modules into the memo of `copy.deepcopy`, as that would make them.

    Those that say themselves how they are copied are left to it.

    Args:
        modules: to copy, with all that they hold.
        known: by the ids of objects what stands for them in the copy.
    """
    made: list[tuple[nn.Module, Any]] = []
    for each in modules:
        kind: Any = type(each)
        if id(each) not in known and _is_plain(kind):
            known[id(each)] = other = object.__new__(kind)
            made.append((each, other))
    for module, other in made:
        state = vars(other)
        for name, value in vars(module).items():
            kind = type(value)
            if kind in SHARED:
                state[name] = value
            elif kind in DICTS and not value and id(value) not in known:
                state[name] = known[id(value)] = kind()  # a module has a dozen for hooks
            else:
                state[name] = _copied(value, known)


@cache
def _is_plain(kind: Any) -> bool:
    """Whether modules of a class are copied by their dict alone."""
    own = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__slots__")
    written = any(name in vars(each) for each in kind.__mro__ if each is not object for name in own)
    written = written or getattr(kind, "__getstate__", None) is not getattr(nn.Module, "__getstate__", None)
    return not written and kind.__setstate__ in PLAIN_STATES and kind.__new__ is object.__new__


def _copied(value: Any, known: dict[int, Any]) -> Any:
    """A deep copy of an attribute of a module."""
    if type(value) in SHARED:
        return value
    if id(value) in known:
        return known[id(value)]
    if type(value) in DICTS and all(type(name) is str for name in value):
        # As those of hooks, parameters, buffers and parts.
        known[id(value)] = other = type(value)()
        for name, each in value.items():
            other[name] = _copied(each, known)
        return other
    return copy.deepcopy(value, known)
