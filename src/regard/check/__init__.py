"""Hand over an attention; learn which step is wrong, and why.

`regard.check` is this room and the function in it: ``regard.check(implementation)`` calls `check`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.check.report import Cause, Example, Place, Report

__all__ = ["Cause", "Example", "Place", "Report", "check", "check_file"]

SECONDS = 60.0
"""After so long an implementation is stopped."""
SEARCH = 0.14
"""This share of it is spent on looking for what explains it, where nothing does."""
MEMORY = 4 * 2**30
"""So many bytes it may ask for."""


def check(
    implementation: Any,
    *,
    args: Mapping[str, Any] | None = None,
    seconds: float = SECONDS,
    memory: int | None = MEMORY,
) -> Report:
    """Which step of an attention is wrong, and why.

    It is called many times, with sizes that all differ and sizes that coincide, with every mask it takes; what it
    returns must be, to 1e-9 in float64, what the definition computes, or what the definition computes with a mistake
    that is then named. Everything runs in a process of its own; what is handed over is not changed.

    Args:
        implementation: a function of (q, k, v), with a mask or a causal flag or without; a class of
            `torch.nn.Module`, or a module that is made: self-attention (x), cross-attention (x, context), multi-head
            (q, k, v), a whole block or decoder.
        args: arguments of a class's constructor; what they leave open is guessed by its name, and said in the report.
        seconds: after which it is stopped.
        memory: bytes that it may ask for; None for all there are.

    Returns:
        A `Report`; ``print(report)`` explains.

    Raises:
        InputError: it is none of these, or cannot be made with these arguments.
    """
    from regard.check.process import Stopped, isolated
    from regard.check.subject import source

    name = getattr(implementation, "__name__", type(implementation).__name__)
    file = source(implementation)
    try:
        return isolated(
            lambda: _judged(implementation, args or {}, seconds),
            seconds=seconds,
            memory=memory,
            watch=None if file is None else Path(file),
        )
    except Stopped as stopped:
        return _stopped(name, stopped)


def check_file(
    target: str, args: Mapping[str, Any], *, seconds: float = SECONDS, memory: int | None = MEMORY
) -> Report:
    """`check` of what FILE.py:NAME names; the file is read in the other process, too.

    Args:
        target: FILE.py:NAME, or module.path:NAME.
        args: see `check`.
        seconds: see `check`.
        memory: see `check`.

    Raises:
        InputError: no such file or name, a file that is not Python; as in `check`.
    """
    from regard.check.process import Stopped, isolated
    from regard.check.subject import loaded

    path, _, name = target.rpartition(":")
    watch = Path(path) if path.endswith(".py") else None
    try:
        return isolated(lambda: _judged(loaded(target)[0], args, seconds), seconds=seconds, memory=memory, watch=watch)
    except Stopped as stopped:
        return _stopped(name, stopped)


def _judged(implementation: Any, args: Mapping[str, Any], seconds: float) -> Report:
    from regard.check.judge import judge
    from regard.check.subject import subject_of
    from regard.check.verdict import report_of

    return report_of(judge(subject_of(implementation, args), until=time.monotonic() + SEARCH * seconds))


def _stopped(name: str, stopped: Any) -> Report:
    said = [str(stopped.reason)] if stopped.where is None else [f"{stopped.reason}: {stopped.where}"]
    if stopped.printed.strip():
        said.append(f"the last that it printed: {stopped.printed.strip()[-200:]!r}")
    return Report(name, "undetermined", ways=(said[0],), notes=tuple(said[1:]))


class _Room(ModuleType):
    """The room, which can be called: the name is its own and the function's."""

    def __call__(self, implementation: Any, **options: Any) -> Report:
        return check(implementation, **options)


sys.modules[__name__].__class__ = _Room
