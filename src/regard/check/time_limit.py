"""When a check looks no further, so that what it found until then is told before its process is stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["is_over", "seconds_left", "time_limit"]

_end: ContextVar[float] = ContextVar("end", default=math.inf)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Inside, after so many seconds, no further call is searched or judged."""
    before = _end.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(before)


def seconds_left() -> float:
    """Until then; infinite where there is no limit."""
    return _end.get() - time.monotonic()


def is_over() -> bool:
    """Whether nothing further is looked for."""
    return seconds_left() <= 0
