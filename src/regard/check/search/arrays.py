"""Code of numpy: functions of arrays as those of tensors, objects that keep their weights as arrays as modules."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from regard.check.names import role

__all__ = ["module_of_arrays", "on_arrays"]

MAX_DEPTH = 3
"""Of objects and dicts within each other."""
GRADIENTS = re.compile(r"grad|^_*d_?[A-Z]|^_*d_?[wb](?:_|$)")
"""Names of what is learned with, not computed with; it is zero at first and may have the shape of a weight."""


class ModuleOfArrays(nn.Module):
    """An object that keeps its weights as arrays: its parameters are written into it before each call.

    Subclasses have the signatures of the object's class and of what is called of it.
    """

    def __init__(self, made: Any, method: str) -> None:
        super().__init__()
        self.made, self.method = made, method
        for names, _, _, array in list(_arrays_of(made)):
            owner: nn.Module = self
            for name in names[:-1]:
                if name not in owner._modules:
                    owner.add_module(name, nn.Module())
                owner = owner.get_submodule(name)
            # Its own name may be that of a method.
            owner._parameters[names[-1]] = nn.Parameter(torch.tensor(array, dtype=torch.float64))

    def __getattr__(self, name: str) -> Any:
        """The numbers of the object are the module's, as that of the heads."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            made = self.__dict__.get("made")
            value = getattr(made, name, None) if made is not None and not name.startswith("_") else None
            if not isinstance(value, int | float):
                raise
            return value

    def forward(self, *args: Any, **named: Any) -> Any:
        """The object's call, with tensors for arrays."""
        parameters = dict(self.named_parameters())
        for names, owner, key, _ in list(_arrays_of(self.made)):
            if (parameter := parameters.get(".".join(names))) is None:
                continue
            if isinstance(owner, dict):
                owner[key] = parameter.detach().numpy()
            else:
                setattr(owner, key, parameter.detach().numpy())
        call = getattr(self.made, self.method)
        return call(*map(_array, args), **{name: _array(value) for name, value in named.items()})


def module_of_arrays(made: Any, call: Callable[..., Any]) -> nn.Module | None:
    """An object as a module; None where it keeps no matrix for queries.

    Args:
        made: the object.
        call: its method that is called.
    """
    if not any(array.ndim > 1 and role(".".join(names)) in ("q", "qkv") for names, *_, array in _arrays_of(made)):
        return None
    kind = type(type(made).__name__, (ModuleOfArrays,), {"__module__": type(made).__module__})
    kind.__signature__ = inspect.signature(type(made))  # type: ignore[attr-defined]

    def forward(self: ModuleOfArrays, *args: Any, **named: Any) -> Any:
        return ModuleOfArrays.forward(self, *args, **named)

    of_call = inspect.signature(call)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = of_call.replace(  # type: ignore[attr-defined]
        parameters=[own, *of_call.parameters.values()]
    )
    kind.forward = forward  # type: ignore[attr-defined]
    module: nn.Module = kind(made, getattr(call, "__name__", "__call__"))
    return module


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numpy's arrays as one of tensors."""

    def array(value: Any) -> Any:
        return _array(value.detach() if isinstance(value, torch.Tensor) else value)

    def called(*args: Any, **named: Any) -> Any:
        return function(*map(array, args), **{name: array(value) for name, value in named.items()})

    called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return called


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _arrays_of(owner: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, str, Any]]:
    """Its arrays that are weights by their names: these names, the object or dict that keeps it, its key there.

    A mask or a table of positions is no weight: it stays as it is.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or len(before) > MAX_DEPTH:
        return
    held = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
    for key, value in list(held.items()):
        names = (*before, str(key))
        if GRADIENTS.search(names[-1]) or not names[-1].isidentifier():
            continue
        if isinstance(value, numpy.ndarray):
            is_weight = value.ndim == 1 or (value.ndim > 1 and bool((value != 0).any()))
            if is_weight and numpy.issubdtype(value.dtype, numpy.floating) and role(".".join(names)) is not None:
                yield names, owner, key, value
        elif isinstance(value, dict) or type(value).__module__ == type(owner).__module__ != "builtins":
            yield from _arrays_of(value, names)
