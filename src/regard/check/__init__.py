"""Check an attention: which step is wrong, and why.

``regard.check(implementation)`` calls the function `check` of this package; ``help(regard.check.check)`` lists its
arguments. The other names are imported from the package, as in ``from regard.check import check_file``: type checkers
take `regard.check` for the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.check.report import CodeLocation, Example, FoundMistake, Report
from regard.errors import InputError

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
    not changed. That process is no sandbox: it guards against accidents, not against code that means harm.

    Args:
        implementation: a function of (q, k, v), with or without a mask or a causal flag; a class of `torch.nn.Module`
            or an instance: self-attention (x), cross-attention (x, context), multi-head attention (q, k, v), a block
            or a decoder.
        args: arguments for the constructor of a class; the others are guessed by their names, and the report lists
            them.
        timeout: seconds after which the check is stopped.
        memory: bytes that the implementation may allocate, 4 GiB by default; None for no limit.

    Returns:
        A `Report`; ``print(report)`` explains it.

    Raises:
        InputError: the implementation is none of these, or cannot be constructed with these arguments.
    """
    from regard.check.subject import source

    name = getattr(implementation, "__name__", type(implementation).__name__)
    file = source(implementation)
    watch = None if file is None else Path(file)
    return _checked(name, lambda: implementation, args or {}, timeout=timeout, memory=memory, watch=watch)


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
        InputError: there is no such file or name, the file is not Python or cannot be imported; or as in `check`.
    """
    from regard.check.importer import load

    path, _, name = target.rpartition(":")
    watch = Path(path) if path.endswith(".py") else None
    return _checked(name, lambda: load(target), args, timeout=timeout, memory=memory, watch=watch)


def _checked(
    name: str,
    load: Callable[[], Any],
    args: Mapping[str, Any],
    *,
    timeout: float,
    memory: int | None,
    watch: Path | None,
) -> Report:
    """The report of what the other process found; the verdict is decided here.

    All that the check needs is imported before the user's code runs, so that this code cannot take its place.
    """
    from regard.check.findings import Findings
    from regard.check.process import Stopped, isolated
    from regard.check.schema import from_builtins

    examine = _examination(load, args, timeout)
    try:
        return from_builtins(Findings, isolated(examine, timeout=timeout, memory=memory, watch=watch)).report()
    except Stopped as stopped:
        reason, printed = stopped.reason, stopped.printed.strip()
        if stopped.where is not None and stopped.where.text:
            reason = f"{reason}: {stopped.where.text}"
        notes = (f"the end of what it printed: {printed[-200:]!r}",) if printed else ()
    except InputError:
        raise
    except ValueError as error:
        reason, notes = f"what the check sent back cannot be read: {error}", ()
    return Report(name, "undetermined", reasons=(reason,), notes=notes)


def _examination(load: Callable[[], Any], args: Mapping[str, Any], timeout: float) -> Callable[[], Any]:
    """What the other process does: it loads an implementation and judges it; its findings as JSON holds them."""
    from regard.check.judge import judge
    from regard.check.schema import to_builtins
    from regard.check.search import Deadline
    from regard.check.subject import subject_of
    from regard.check.torch_settings import UserSettings
    from regard.check.verdict import findings_of

    def examine() -> Any:
        settings = UserSettings()
        with settings.adopted():
            with settings.on():
                implementation = load()
            deadline = Deadline(SEARCH_SHARE * timeout, wall_seconds=MAX_SEARCH_SHARE * timeout)
            return to_builtins(findings_of(judge(subject_of(implementation, args, settings), deadline=deadline)))

    return examine


def __dir__() -> list[str]:
    return sorted(__all__)


class _CallablePackage(ModuleType):
    """A package that can be called, since the function has the same name."""

    __signature__ = signature(check)

    def __call__(self, implementation: Any, **options: Any) -> Report:
        return check(implementation, **options)


sys.modules[__name__].__class__ = _CallablePackage
