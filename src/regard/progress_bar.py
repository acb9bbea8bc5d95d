"""A progress bar for work that may be done within a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

DELAY_SECONDS = 1.0
"""The bar appears after this time."""


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal and the work takes longer than a second; a notebook shows none.

    Args:
        description: of the work.
        total: the amount of work.

    Yields:
        A function to call with the amount of work that is done.
    """
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)
    start_time, is_shown = time.monotonic() + DELAY_SECONDS, False

    def on_progress(done: int) -> None:
        nonlocal is_shown
        if not is_shown and time.monotonic() >= start_time and bar.console.is_terminal:
            bar.start()
            is_shown = True
        if is_shown:
            bar.update(task, completed=done)

    try:
        yield on_progress
    finally:
        if is_shown:
            bar.stop()
