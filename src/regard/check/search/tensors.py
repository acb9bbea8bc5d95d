"""The tensors in what a call returns, and functions of numpy's arrays as functions of tensors."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from regard.check.target.numpy_by_torch import is_array

__all__ = ["on_arrays", "tensors_in"]


def tensors_in(result: Any) -> Iterator[Tensor]:
    """Every tensor that a call returned, the first one first; numpy's arrays too."""
    if isinstance(result, Tensor):
        yield _plain(result)
    elif is_array(result):
        with suppress(TypeError):  # of texts or objects
            yield torch.tensor(result)
    elif isinstance(result, Mapping):
        yield from itertools.chain.from_iterable(map(tensors_in, result.values()))
    elif isinstance(result, list | tuple):
        yield from itertools.chain.from_iterable(map(tensors_in, result))
    elif is_dataclass(result) and not isinstance(result, type):
        yield from tensors_in([getattr(result, each.name) for each in fields(result)])


def _plain(tensor: Tensor) -> Tensor:
    """The numbers of a tensor: what a class of the user's own makes of an operation is not what it returned."""
    if type(tensor) is Tensor:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numpy's arrays as one of tensors."""

    def array(value: Any) -> Any:
        return value.detach().numpy() if isinstance(value, Tensor) else value

    def called(*args: Any, **named: Any) -> Any:
        return function(*map(array, args), **{name: array(value) for name, value in named.items()})

    called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return called
