"""Timing things against each other on a noisy machine, and the memory they take."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch


def medians(*calls: Callable[[], object], rounds: int = 9, warm: bool = True) -> list[float]:
    """Median seconds of each, taken in turn so that a slow spell of the machine hits them all.

    Each is run once before, and enough times in each round to fill a twentieth of a second; what takes many seconds
    needs neither (`warm=False`).
    """
    repeats = [_repeats(call) if warm else 1 for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, count, taken in zip(calls, repeats, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            taken.append((time.perf_counter() - start) / count)
    return [statistics.median(taken) for taken in times]


def matmul() -> Callable[[], object]:
    """A multiplication of matrices, whose rate is the floor under everything else; `MATMUL` operations."""
    a = torch.randn(2048, 2048)
    return lambda: a @ a


MATMUL = 2 * 2048**3


def peak_mb(code: str) -> float:
    """MiB by which a process grows, at the most, while it runs the last line of this code (Linux)."""
    *before, last = code.strip().splitlines()
    lines = [
        "import torch",
        "def read(name): return int(open('/proc/self/status').read().split(name + ':')[1].split()[0])",
        *before,
        "open('/proc/self/clear_refs', 'w').write('5')",  # the high-water mark starts anew
        "start = read('VmRSS')",
        last,
        "print((read('VmHWM') - start) / 1024)",
    ]
    out = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True).stdout
    return float(out.split()[-1])


def _repeats(call: Callable[[], object]) -> int:
    call()
    start = time.perf_counter()
    call()
    return max(1, round(0.05 / (time.perf_counter() - start)))
