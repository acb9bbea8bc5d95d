"""Hooks on the calls of `attend` in one thread; `regard.watch` and `regard.intervene` work through them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

CallHook = Callable[..., Tensor | None]
"""Called with q, k, v, mask and the options of `attend` by name, and with the output as ``output``. What it returns
takes the output's place, also for the hooks after it; None leaves the output as it is."""


class _HookState(threading.local):
    """The hooks of one thread."""

    hooks: tuple[CallHook, ...] = ()
    in_attend = False
    """Whether a call of `attend` is running; the kernels that it calls are not to be recorded a second time."""


hook_state = _HookState()


@contextmanager
def register_hook(hook: CallHook) -> Iterator[None]:
    """Call the hook after every call of `attend` in this thread, until the context ends."""
    hook_state.hooks = (*hook_state.hooks, hook)
    try:
        yield
    finally:
        hook_state.hooks = tuple(other for other in hook_state.hooks if other is not hook)


@contextmanager
def disable_hooks() -> Iterator[tuple[CallHook, ...]]:
    """Call no hook until the context ends; gives the hooks that are disabled."""
    hooks, in_attend = hook_state.hooks, hook_state.in_attend
    hook_state.hooks, hook_state.in_attend = (), True
    try:
        yield hooks
    finally:
        hook_state.hooks, hook_state.in_attend = hooks, in_attend
