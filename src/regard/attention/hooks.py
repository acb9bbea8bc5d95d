"""Who wants to be told of every call of `attend` in this thread: what `regard.watch` listens by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["CallHook", "disable_hooks", "hook_state", "register_hook"]

CallHook = Callable[..., None]
"""Called with q, k, v, mask and the options of `attend` by name, and the output as ``output``."""


class _HookState(threading.local):
    """What holds for one thread."""

    hooks: tuple[CallHook, ...] = ()
    in_attend = False
    """Whether a call of `attend` is running: what kernels it uses is its own affair."""


hook_state = _HookState()


@contextmanager
def register_hook(hook: CallHook) -> Iterator[None]:
    """Tell the hook of every call of `attend` in this thread meanwhile."""
    hook_state.hooks = (*hook_state.hooks, hook)
    try:
        yield
    finally:
        hook_state.hooks = tuple(other for other in hook_state.hooks if other is not hook)


@contextmanager
def disable_hooks() -> Iterator[tuple[CallHook, ...]]:
    """Tell nobody meanwhile; gives those who would have been told."""
    hooks, in_attend = hook_state.hooks, hook_state.in_attend
    hook_state.hooks, hook_state.in_attend = (), True
    try:
        yield hooks
    finally:
        hook_state.hooks, hook_state.in_attend = hooks, in_attend
