"""`regard.check`: how long it takes until it says what is wrong."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import regard
from bench.table import Row

EVERY = 3
"""Of the bank's implementations, which the tests judge all."""


def verdicts() -> Iterator[Row]:
    """Implementations of the tests' bank, right and wrong, each checked as a user does: in a process of its own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from bank import entries

    seconds = []
    for entry in list(entries())[::EVERY]:
        began = time.perf_counter()
        regard.check(entry.what, args=entry.args)
        seconds.append(time.perf_counter() - began)
    cuts = statistics.quantiles(seconds, n=20)
    case = f"check, {len(seconds)} implementations of tests/bank"
    yield Row(f"{case}, median", "", f"{statistics.median(seconds):.1f} s", "3 s at most")
    yield Row(f"{case}, 95 % of them", "", f"{cuts[-1]:.1f} s", "8 s at most")
