"""A progress bar for what may be over at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

__all__ = ["progress"]

PATIENCE = 1.0
"""Seconds that somebody waits without asking how long it will take."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal and it takes longer than a second.

    Args:
        what: is being done.
        total: how much there is to do.

    Yields:
        What is told how much is done.
    """
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    due, shown = time.monotonic() + PATIENCE, False

    def tell(done: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() >= due and bar.console.is_terminal:
            bar.start()
            shown = True
        if shown:
            bar.update(task, completed=done)

    try:
        yield tell
    finally:
        if shown:
            bar.stop()
