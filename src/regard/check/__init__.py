"""Check an attention: which step is wrong, and why.

`regard.check` is this package and its function: ``regard.check(implementation)`` calls `check`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.check.report import CodeLocation, Example, FoundMistake, Report

__all__ = ["CodeLocation", "Example", "FoundMistake", "Report", "check", "check_file"]

DEFAULT_TIMEOUT = 60.0
"""Seconds after which an implementation is stopped."""
DEFAULT_MEMORY = 4 * 2**30
"""Bytes that an implementation may allocate."""
SEARCH_SHARE = 0.14
"""The share of the timeout, in CPU time, after which the search gives up if nothing explains the output."""
MAX_SEARCH_SHARE = 0.5
"""The same in wall time, so that an implementation that waits leaves time for the rest of the check."""


def check(
    implementation: Any,
    *,
    args: Mapping[str, Any] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
) -> Report:
    """Check an attention: which step is wrong, and why.

    The implementation is called many times: with sizes that all differ, with sizes that coincide, and with every mask
    it takes. Each output must equal, to 1e-9 in float64, the output of the definition or of the definition with a
    known mistake, which the report then names. Everything runs in a process of its own; the implementation itself is
    not changed.

    Args:
        implementation: a function of (q, k, v), with or without a mask or a causal flag; a class of `torch.nn.Module`
            or an instance: self-attention (x), cross-attention (x, context), multi-head attention (q, k, v), a block
            or a decoder.
        args: arguments for the constructor of a class; the others are guessed by their names, and the report lists
            them.
        timeout: seconds after which the check is stopped.
        memory: bytes that the implementation may allocate; None for no limit.

    Returns:
        A `Report`; ``print(report)`` explains it.

    Raises:
        InputError: the implementation is none of these, or cannot be constructed with these arguments.
    """
    from regard.check.process import Stopped, isolated
    from regard.check.subject import source

    name = getattr(implementation, "__name__", type(implementation).__name__)
    file = source(implementation)
    try:
        return isolated(
            lambda: _judged(implementation, args or {}, timeout),
            timeout=timeout,
            memory=memory,
            watch=None if file is None else Path(file),
        )
    except Stopped as stopped:
        return _stopped(name, stopped)


def check_file(
    target: str, args: Mapping[str, Any], *, timeout: float = DEFAULT_TIMEOUT, memory: int | None = DEFAULT_MEMORY
) -> Report:
    """`check` for the function or class FILE.py:NAME; the file, too, is imported in the other process.

    Args:
        target: FILE.py:NAME, or module.path:NAME.
        args: see `check`.
        timeout: see `check`.
        memory: see `check`.

    Raises:
        InputError: there is no such file or name, or the file is not Python; or as in `check`.
    """
    from regard.check.process import Stopped, isolated
    from regard.check.subject import loaded

    path, _, name = target.rpartition(":")
    watch = Path(path) if path.endswith(".py") else None
    try:
        return isolated(lambda: _judged(loaded(target)[0], args, timeout), timeout=timeout, memory=memory, watch=watch)
    except Stopped as stopped:
        return _stopped(name, stopped)


def _judged(implementation: Any, args: Mapping[str, Any], timeout: float) -> Report:
    from regard.check.judge import judge
    from regard.check.search import Deadline
    from regard.check.subject import subject_of
    from regard.check.verdict import report_of

    deadline = Deadline(SEARCH_SHARE * timeout, wall_seconds=MAX_SEARCH_SHARE * timeout)
    return report_of(judge(subject_of(implementation, args), deadline=deadline))


def _stopped(name: str, stopped: Any) -> Report:
    reason = str(stopped.reason) if stopped.where is None else f"{stopped.reason}: {stopped.where}"
    printed = stopped.printed.strip()
    notes = (f"the end of what it printed: {printed[-200:]!r}",) if printed else ()
    return Report(name, "undetermined", reasons=(reason,), notes=notes)


class _CallablePackage(ModuleType):
    """A package that can be called, since the function has the same name."""

    def __call__(self, implementation: Any, **options: Any) -> Report:
        return check(implementation, **options)


sys.modules[__name__].__class__ = _CallablePackage
