"""Who wants to be told of every call of `attend` in this thread: what `regard.watch` listens by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Witness", "here", "listening", "muted"]

Witness = Callable[..., None]
"""Called with q, k, v, mask and the options of `attend` by name, and the output as ``output``."""


class _Here(threading.local):
    """What holds for one thread."""

    witnesses: tuple[Witness, ...] = ()
    within = False
    """Whether a call of `attend` is running: what kernels it uses is its own affair."""


here = _Here()


@contextmanager
def listening(witness: Witness) -> Iterator[None]:
    """Tell the witness of every call of `attend` in this thread meanwhile."""
    here.witnesses = (*here.witnesses, witness)
    try:
        yield
    finally:
        here.witnesses = tuple(other for other in here.witnesses if other is not witness)


@contextmanager
def muted() -> Iterator[tuple[Witness, ...]]:
    """Tell nobody meanwhile; gives those who would have been told."""
    witnesses, within = here.witnesses, here.within
    here.witnesses, here.within = (), True
    try:
        yield witnesses
    finally:
        here.witnesses, here.within = witnesses, within
