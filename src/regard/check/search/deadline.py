"""When a search gives up."""

from __future__ import annotations

import math
import time

__all__ = ["Deadline"]


class Deadline:
    """When a search gives up: after an amount of CPU time, so that a busy machine changes no verdict.

    The limit of wall time is for an implementation that waits, such as for a lock or a sleep.
    """

    def __init__(self, cpu_seconds: float, wall_seconds: float = math.inf) -> None:
        self._cpu = time.thread_time() + cpu_seconds
        self._wall = time.monotonic() + wall_seconds

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.thread_time() > self._cpu or time.monotonic() > self._wall

    def share(self, parts: int) -> Deadline:
        """A deadline after one of several equal parts of the time that is left, of half a second at least."""
        left = (max(0.5, self._cpu - time.thread_time()), max(0.5, self._wall - time.monotonic()))
        return Deadline(*(each / parts for each in left))
