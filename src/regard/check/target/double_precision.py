"""Code that asks for float32 or float16 inside is run in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.check.target.numpy_by_torch import is_array

__all__ = ["double_precision", "widened"]

WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
CASTS = {Tensor.float, Tensor.half, Tensor.bfloat16}
COMPLEX_CASTS = {getattr(Tensor, name) for name in ("cfloat", "chalf")}
LEGACY_TYPES = {"torch.FloatTensor", "torch.HalfTensor", "torch.BFloat16Tensor"}
MAX_DEPTH = 2
"""Of the lists in the arguments of a function: torch.cat takes a list, indices may be a tuple in a tuple."""
PLAIN = frozenset({int, float, bool, type(None), slice})
"""Types of arguments that say nothing of a type of numbers."""


class DoublePrecision(TorchFunctionMode):
    """Inside, no operation leads from float64 to a narrower type."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        """How many functions of PyTorch returned: how far a call came that failed in the end."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function with wider types in place of narrow ones."""
        result = self._called(func, args, kwargs)
        self.calls += 1
        return result

    @staticmethod
    def _called(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if not kwargs and all(map(_needs_nothing, args)) and func not in CASTS and func not in COMPLEX_CASTS:
            return func(*args)  # most calls, and code with loops makes hundreds of thousands
        if func in CASTS:
            return Tensor.double(args[0])
        if func in COMPLEX_CASTS:
            return Tensor.to(args[0], torch.complex128)
        args = tuple(_wider_type(each) for each in args)
        kwargs = {name: _wider_type(each) for name, each in (kwargs or {}).items()}
        if func is Tensor.type and any(each in LEGACY_TYPES for each in args[1:] if isinstance(each, str)):
            return Tensor.double(args[0])
        if _mixes(args, kwargs):
            kept = 1 if _writes(getattr(func, "__name__", "")) else 0
            args = args[:kept] + tuple(_wider_tensor(each) for each in args[kept:])
            kwargs = {name: _wider_tensor(each) for name, each in kwargs.items()}
        return func(*args, **kwargs)


@contextmanager
def double_precision() -> Iterator[DoublePrecision]:
    """Inside, `.float()`, `.to(torch.float16)`, `softmax(dtype=torch.float32)` and factories of float32 give float64.

    So the numbers of somebody's code can be held against a definition to 1e-9. Tensors of float32 that code keeps
    where no conversion of a module reaches them are widened where they meet one of float64.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with DoublePrecision() as mode, _asserted_types():
            yield mode
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _asserted_types() -> Iterator[None]:
    """Inside, what is asserted to be a torch.FloatTensor may be of float64, as all that is handed over is."""
    kind = torch.FloatTensor
    torch.FloatTensor = torch.DoubleTensor  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        torch.FloatTensor = kind  # type: ignore[misc]


def _needs_nothing(value: Any) -> bool:
    """Whether a value neither has a type that may have to be wider nor may hold one that has."""
    return value.dtype is torch.float64 if type(value) is Tensor else type(value) in PLAIN


def _wider_type(value: Any) -> Any:
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _writes(name: str) -> bool:
    """Whether a function writes into its first argument: add_, __setitem__, __iadd__."""
    return name.startswith(("__set", "__i")) or (name.endswith("_") and not name.endswith("__"))


def _mixes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether tensors of float64 and of narrower types are among the arguments."""
    if "out" in kwargs:
        return False
    types = {each.dtype for each in _tensors((*args, *kwargs.values()), MAX_DEPTH)}
    return bool(types & {torch.float64, torch.complex128}) and any(each in WIDER for each in types)


def _tensors(values: Any, depth: int) -> Iterator[Tensor]:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif depth and isinstance(each, list | tuple):
            yield from _tensors(each, depth - 1)


def _wider_tensor(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(WIDER[value.dtype]) if value.dtype in WIDER else value
    if type(value) in (list, tuple):
        return type(value)(_wider_tensor(each) for each in value)
    return value


def widened(value: Any) -> Any:
    """A value of the user's, its arrays as tensors, and those of floats in float64, in lists, tuples and dicts too."""
    if is_array(value):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return value.detach().to(WIDER.get(value.dtype, value.dtype))
    if type(value) in (list, tuple):
        return type(value)(widened(each) for each in value)
    if type(value) is dict:
        return {name: widened(each) for name, each in value.items()}
    return value
