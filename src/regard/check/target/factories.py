"""Functions that make what is judged: a module of arguments of theirs, or a module and its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch import nn

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.errors import NotCallable, error_line
from regard.check.target.made_parameters import made_parameters
from regard.check.target.names import constructor_meaning
from regard.check.target.signature import readings

__all__ = ["Made", "from_factory"]

SMALL = {"layers": 2, "heads": 3, "d_model": 24, "d_ff": 48}
"""Sizes of a module, which its check takes instead of larger defaults."""
OF_ONE_ANOTHER = ("d_model", "heads")
"""Sizes of which one may have to be a multiple of the other: where one is told, both stay."""


@dataclass(frozen=True)
class Made:
    """What a function made."""

    implementation: Any
    """The module; or the function itself, where it is no factory."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """By the names of its arguments."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the user that are left for a constructor."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """That the function was told beside the user's arguments."""


def from_factory(implementation: Any, args: Mapping[str, Any], settings: UserSettings) -> Made:
    """What a function makes that needs nothing else: a module, or a module and its inputs; anything else is itself.

    Args:
        implementation: the function.
        args: of it, or the fields of the config that it takes.
        settings: PyTorch's settings meanwhile.

    Raises:
        NotCallable: it raises, or makes nothing that can be called.
    """
    if inspect.isclass(implementation) or not inspect.isfunction(implementation):
        return Made(implementation, args=args)
    if inspect.signature(implementation).parameters:
        made = _made_with(implementation, args, settings)
        return made or Made(implementation, args=args or made_parameters(implementation, settings))
    with settings.on():
        made = implementation()
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        target, inputs = made
        if isinstance(inputs, Mapping):
            return Made(target, dict(inputs), args)
        values = inputs if isinstance(inputs, tuple | list) else (inputs,)
        names = list(dict.fromkeys(each.within or each.name for each in readings(target)[0]))
        return Made(target, dict(zip(names, values, strict=False)), args)
    if callable(made):
        return Made(made, args=args)
    raise NotCallable(
        f"{implementation.__name__}() returned a {type(made).__name__}: a factory returns a module, or (module, inputs)"
    )


def _made_with(function: Any, args: Mapping[str, Any], settings: UserSettings) -> Made | None:
    """The module, or the object of a class that can be called, that a function makes of arguments alone; else None."""
    parameters = inspect.signature(function).parameters
    required = [
        each.name
        for each in parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if not args:
        return None
    if set(required) <= set(args) <= set(parameters):
        given: Mapping[str, Any] = args
    elif len(required) == 1 and constructor_meaning(required[0]) == "config" and not set(args) & set(parameters):
        given = {required[0]: SimpleNamespace(**args)}
    else:
        return None
    for sizes in (_small_sizes(parameters, args), {}):
        try:
            with settings.on():
                made = function(**given, **sizes)
        except Exception as error:
            if sizes:  # it may take its own defaults alone
                continue
            message = f"{function.__name__} raises {error_line(error)} with the arguments that it is given"
            raise NotCallable(message) from error
        is_own = type(made).__module__.partition(".")[0] not in ("builtins", "numpy", "torch")
        is_called = isinstance(made, nn.Module) or (callable(made) and is_own)
        return Made(made, sizes=sizes) if is_called else None
    return None


def _small_sizes(parameters: Mapping[str, inspect.Parameter], args: Mapping[str, Any]) -> dict[str, int]:
    """Small numbers for the sizes of a module that are left to larger defaults."""
    told = {constructor_meaning(name) for name in args}
    found = {}
    for name, parameter in parameters.items():
        # N is how many layers there are in "Attention Is All You Need", 3.1, and in what was written after it.
        means = "layers" if name == "N" else constructor_meaning(name) or ""
        is_bound = means in OF_ONE_ANOTHER and not told.isdisjoint(OF_ONE_ANOTHER)
        if name not in args and not is_bound and type(parameter.default) is int and means in SMALL:
            found[name] = min(parameter.default, SMALL[means])
    return {name: size for name, size in found.items() if size < parameters[name].default}
