"""PyTorch's settings of the whole process: the user's code has its own during its calls, the check has PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.utils._device import DeviceContext

__all__ = ["UserSettings"]


class _Setting(NamedTuple):
    name: str
    get: Callable[[], Any]
    set: Callable[[Any], object]
    default: Any
    of_user: bool = False
    """Whether the user's code has its own during its calls: without it, it might not run."""


def _function_modes() -> list[Any]:
    return [_get_function_stack_at(at) for at in range(_len_torch_function_stack())]


def _default_device() -> torch.device | None:
    """The default device; None where nobody has set one."""
    return next((mode.device for mode in _function_modes() if isinstance(mode, DeviceContext)), None)


SETTINGS = (
    _Setting("default device", _default_device, torch.set_default_device, None, of_user=True),
    _Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32, of_user=True),
    _Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled, True),
    _Setting("deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
    _Setting(
        "autocast", lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on), False
    ),
    _Setting("number of threads", torch.get_num_threads, torch.set_num_threads, 1),
)


def _set(values: list[Any]) -> None:
    for each, value in zip(SETTINGS, values, strict=True):
        if each.get() != value:
            each.set(value)


class UserSettings:
    """What the user's code has set, and what it changed while it was being checked."""

    def __init__(self) -> None:
        self._theirs = {each.name: each.default for each in SETTINGS if each.of_user}
        self.changed: dict[str, None] = {}
        """The names of the settings that it changed."""

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """Take what is set now for the user's; inside, PyTorch's defaults hold, on one thread as in any fork."""
        before = [each.get() for each in SETTINGS]
        self._theirs = {each.name: value for each, value in zip(SETTINGS, before, strict=True) if each.of_user}
        _set([each.default for each in SETTINGS])
        try:
            yield
        finally:
            _set(before)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, the user's code runs, with its settings; afterwards all are as they were before."""
        before, modes = [each.get() for each in SETTINGS], _function_modes()
        depth = _len_torch_dispatch_stack()
        theirs = [self._theirs.get(each.name, value) for each, value in zip(SETTINGS, before, strict=True)]
        _set(theirs)
        try:
            yield
        finally:
            for each, wanted in zip(SETTINGS, theirs, strict=True):
                now = each.get()
                if now != wanted:
                    self.changed[each.name] = None
                if each.of_user:
                    self._theirs[each.name] = now
            _set(before)
            self._leave_modes(modes, depth)

    def _leave_modes(self, functions: list[Any], depth: int) -> None:
        """Leave the modes that the user's code entered for good: each would change what the check computes."""
        now = _function_modes()
        if now != functions:
            self.changed["stack of modes"] = None
            for _ in now:
                _pop_torch_function_stack()
            for mode in functions:
                _push_on_torch_function_stack(mode)
        while _len_torch_dispatch_stack() > depth:
            self.changed["stack of modes"] = None
            _pop_torch_dispatch_stack()

    def note(self) -> str:
        """What is to be told of it; empty if it changed nothing."""
        return f"it changes PyTorch's {', '.join(self.changed)} for the whole process" if self.changed else ""
