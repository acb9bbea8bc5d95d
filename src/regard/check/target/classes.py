"""What the classes of a file take, and which of them an argument may be named after."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import nn

from regard.check.target.argument import text_of
from regard.errors import InputError

__all__ = [
    "are_alike",
    "classes_beside",
    "handed_on",
    "handed_up",
    "method_of",
    "own_classes",
    "parameters_of",
    "takes",
]

METHODS = ("forward", "attention", "attend", "call", "compute_attention", "apply", "run", "compute")
"""Of a plain class, what is called."""
MIN_LETTERS = 4
"""Of the first word of a name that says of which class an object is."""


def are_alike(name: str, class_name: str) -> bool:
    """Whether an argument may be named after a class, as rotary_emb after RotaryEmbedding."""
    first, *rest = name.lower().strip("_").split("_")
    words = [each.lower() for each in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", class_name)]
    return len(first) >= MIN_LETTERS and first in words and all(any(w.startswith(e) for w in words) for e in rest)


def classes_beside(owner: Any) -> list[type]:
    """The classes that the file of a class or function defines, but for itself."""
    module = getattr(owner, "__module__", "")
    beside = vars(sys.modules.get(module, object)).values()
    return [each for each in beside if inspect.isclass(each) and each.__module__ == module and each is not owner]


@cache
def handed_on(kind: type, name: str) -> list[type]:
    """The classes of the file that take an argument by the same name, where the class hands it on to those it makes."""
    source, given = text_of(kind), rf"\([^()]*\b{re.escape(name)}\b"
    others = [each for each in classes_beside(kind) if each.__name__ in source and name in parameters_of(each)]
    return [each for each in others if re.search(rf"\b{re.escape(each.__name__)}{given}", source)]


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many arguments by their place."""
    try:
        inspect.signature(function).bind(*range(count))
    except (ValueError, TypeError):
        return False
    return True


def own_classes(kind: type) -> list[type]:
    """A class and those above it that are neither PyTorch's nor Python's."""
    return [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in ("torch", "builtins")]


def parameters_of(kind: type) -> Mapping[str, inspect.Parameter]:
    """The parameters of a constructor; one that hands over all that it is given has those of the next class above."""
    return _parameters_of(kind)


@cache
def _parameters_of(kind: Any) -> Mapping[str, inspect.Parameter]:
    """The same, read once."""
    try:
        found: Mapping[str, inspect.Parameter] = inspect.signature(kind).parameters
    except (ValueError, TypeError):
        return {}
    for each in kind.__mro__[1:-1]:
        kinds = {one.kind for one in found.values()}
        if not kinds or not kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            break
        own = vars(each).get("__init__")
        if inspect.isfunction(own):
            found = dict(list(inspect.signature(own).parameters.items())[1:])  # without self
    return found


def method_of(made: Any) -> Callable[..., Any]:
    """What is called of an object that is no module.

    Raises:
        InputError: it cannot be called, and has no method that a call might mean.
    """
    if isinstance(made, nn.Module) or (callable(made) and not _hands_on(made)):
        called: Callable[..., Any] = made
        return called
    for name in METHODS:
        if callable(getattr(made, name, None)):
            found: Callable[..., Any] = getattr(made, name)
            return found
    raise InputError(f"{type(made).__name__} is not a torch.nn.Module and has no forward method")


def _hands_on(made: Any) -> bool:
    """Whether calling an object hands all arguments on to a method of it, whose names say what they are."""
    if inspect.isroutine(made) or not any(callable(getattr(made, name, None)) for name in METHODS):
        return False
    try:
        kinds = {each.kind for each in inspect.signature(made).parameters.values()}
    except (ValueError, TypeError):
        return False
    return bool(kinds) and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def handed_up(kind: type[nn.Module], parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a call; one that hands all that it is given to the class above has those of that class, too."""
    rest = [each for each in parameters.values() if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    above = next((vars(each)["forward"] for each in kind.__mro__[1:] if "forward" in vars(each)), None)
    if len(rest) != 2 or not inspect.isfunction(above) or above is nn.Module.forward:
        return parameters
    if not re.search(r"super\([^()]*\)\.forward\(\*\w+, (?:\w+\s*=\s*\w+, )*\*\*\w+\)", text_of(kind.forward)):
        return parameters
    own = {name: each for name, each in parameters.items() if each not in rest}
    taken = dict(list(inspect.signature(above).parameters.items())[1:])  # without self
    return {**{name: each for name, each in taken.items() if name not in own}, **own}
