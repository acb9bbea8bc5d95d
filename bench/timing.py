"""Timing two things against each other on a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def ratio(ours: Callable[[], object], theirs: Callable[[], object], *, rounds: int = 9) -> tuple[float, float]:
    """Median seconds of ours and of theirs, taken in turn so that a slow spell of the machine hits both.

    Each is run once before, and enough times in each round to fill a twentieth of a second.
    """
    repeats = [_repeats(call) for call in (ours, theirs)]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, count, taken in zip((ours, theirs), repeats, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            taken.append((time.perf_counter() - start) / count)
    return statistics.median(times[0]), statistics.median(times[1])


def _repeats(call: Callable[[], object]) -> int:
    call()
    start = time.perf_counter()
    call()
    return max(1, round(0.05 / (time.perf_counter() - start)))
