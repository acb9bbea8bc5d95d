"""Check an attention: which step is wrong, and why; or whether it computes the same as another one.

``regard.check(implementation)`` calls the function `check` of this package; ``help(regard.check.check)`` lists its
arguments. The other names are imported from the package, as in ``from regard.check import check_file``: type checkers
take `regard.check` for the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

from regard.check.report import CodeLocation, Example, FoundMistake, Report
from regard.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from regard.check.equivalence import Equivalence, WeightMapping

__all__ = [
    "CodeLocation",
    "Example",
    "FoundMistake",
    "Report",
    "check",
    "check_file",
    "compare_files",
    "convert",
]

DEFAULT_TIMEOUT = 60.0
"""Seconds after which an implementation is stopped."""
DEFAULT_MEMORY = 4 * 2**30
"""Bytes that an implementation may allocate."""
SEARCH_SHARE = 0.6
"""The share of the timeout after which no further call is searched or judged: what was found until then is told."""
CELL_SHARE = 0.4
"""The share of the timeout after which the cells of a notebook are stopped, such as one that trains."""


@overload
def check(
    implementation: Any,
    *,
    args: Mapping[str, Any] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
) -> Report: ...


@overload
def check(
    implementation: Any,
    *,
    args: Mapping[str, Any] | None = None,
    against: object,
    against_args: Mapping[str, Any] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
) -> Equivalence: ...


def check(
    implementation: Any,
    *,
    args: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | str | None = None,
    against: object = None,
    against_args: Mapping[str, Any] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
) -> Report | Equivalence:
    """Check an attention: which step is wrong, and why; or whether it computes the same as another one.

    The implementation is called many times: with sizes that all differ, with sizes that coincide, and with every mask
    it takes. Each output must equal, to 1e-9 in float64, the output of the definition or of the definition with a
    known mistake, which the report then names. Everything runs in a process of its own; the implementation itself is
    not changed. That process is no sandbox: it guards against accidents, not against code that means harm.

    Args:
        implementation: a function of (q, k, v), with or without a mask or a causal flag; a class of `torch.nn.Module`
            or an instance: self-attention (x), cross-attention (x, context), multi-head attention (q, k, v), a block
            or a decoder; or a function that makes one.
        args: arguments for the constructor of a class, or for such a function; the others are guessed by their names,
            and the report lists them. A text that calls something of its file, as ``"Config(n_head=4)"``, is its
            value.
        inputs: arguments for its call where names tell too little: tensors by name, or a text such as
            ``"x=(B,T,D), freqs=rope(T,d), mask=causal(T)"``, from which inputs of several sizes are made. What they
            leave open is guessed.
        against: another implementation of the same kind and sizes. The check is then whether both compute the same, to
            1e-9 in float64, and with which reordering of weights.
        against_args: arguments for its constructor.
        timeout: seconds after which the check is stopped.
        memory: bytes that the implementation may allocate, 4 GiB by default; None for no limit.

    Returns:
        A `Report`, or with `against` an `Equivalence`; ``print(report)`` explains it.

    Raises:
        InputError: the implementation is none of these, or cannot be constructed with these arguments.
    """
    from regard.check.search.subject import source

    name = getattr(implementation, "__name__", type(implementation).__name__)
    file = source(implementation)
    watch = None if file is None else Path(file)
    if against is not None:
        if inputs is not None:
            raise InputError("inputs are not taken with against: what both are called with is found out")
        from regard.check.equivalence import compare_isolated

        return compare_isolated(
            (name, getattr(against, "__name__", type(against).__name__)),
            (lambda: implementation, lambda: against),
            (args or {}, against_args or {}),
            timeout=timeout,
            memory=memory,
            watch=watch,
        )
    if against_args:
        raise InputError("against_args are for the constructor of against, which is not given")
    return _checked(
        name, lambda _notes: implementation, args or {}, inputs, timeout=timeout, memory=memory, watch=watch
    )


def check_file(
    target: str,
    args: Mapping[str, Any],
    inputs: str | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
) -> Report:
    """`check` for the function or class FILE.py:NAME; the file, too, is imported in the other process.

    Args:
        target: FILE.py:NAME, LESSON.ipynb:NAME or module.path:NAME. The cells of a notebook are run in order;
            those that fail or take too long are told in a note.
        args: see `check`.
        inputs: see `check`, as a text.
        timeout: see `check`.
        memory: see `check`.

    Raises:
        InputError: there is no such file or name, the file is not Python or cannot be imported; or as in `check`.
    """
    from regard.check.source.importer import is_path, load
    from regard.check.source.notebook import NOTEBOOK_SUFFIX, read_notebook

    path, _, name = target.rpartition(":")
    notebook = read_notebook(path) if path.endswith(NOTEBOOK_SUFFIX) else None
    if notebook is not None:
        notebook.remember()
    report = _checked(
        name,
        lambda notes: load(target, notes, cell_seconds=CELL_SHARE * timeout),
        args,
        inputs,
        timeout=timeout,
        memory=memory,
        watch=Path(path) if is_path(path) else None,
    )
    return report if notebook is None else notebook.relocate(report)


def compare_files(
    target: str,
    against: str,
    args: Mapping[str, Any],
    against_args: Mapping[str, Any],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
) -> Equivalence:
    """`check` with `against`, for two functions or classes FILE.py:NAME; both files are imported in the other process.

    Args:
        target: FILE.py:NAME, or module.path:NAME.
        against: the same of the other one.
        args: for the constructor of target.
        against_args: for the constructor of against.
        timeout: see `check`.
        memory: see `check`.

    Raises:
        InputError: see `check_file`.
    """
    from regard.check.equivalence import compare_isolated
    from regard.check.source.importer import is_path, load

    path, _, name = target.rpartition(":")
    cell_seconds = CELL_SHARE * timeout
    return compare_isolated(
        (name, against.rpartition(":")[2]),
        (
            lambda: load(target, [], cell_seconds=cell_seconds),
            lambda: load(against, [], cell_seconds=cell_seconds),
        ),
        (args, against_args),
        timeout=timeout,
        memory=memory,
        watch=Path(path) if is_path(path) else None,
    )


def convert(a: nn.Module, b: nn.Module) -> WeightMapping:
    """Set the parameters of an attention so that it computes what another one does.

    How the weights have to be reordered is found and proved on copies in float64, with numbers drawn at random; b is
    changed only then. Both run in this process.

    Args:
        a: the module whose weights are taken; it is not changed.
        b: the module whose parameters are set, of the same sizes.

    Returns:
        The reordering, as data.

    Raises:
        InputError: they do not compute the same, whatever b's weights are; the message names the step at which they
            part. Or they are no modules, or could not be compared.
    """
    from regard.check import equivalence

    return equivalence.convert(a, b)


def _checked(
    name: str,
    load: Callable[[list[str]], Any],
    args: Mapping[str, Any],
    inputs: Mapping[str, Any] | str | None,
    *,
    timeout: float,
    memory: int | None,
    watch: Path | None,
) -> Report:
    """The report of what the other process found; the verdict is decided here.

    All that the check needs is imported before the user's code runs, so that this code cannot take its place.
    """
    from regard.check.report.findings import Findings
    from regard.check.sandbox.faults import fault_reason
    from regard.check.sandbox.process import Stopped, isolated
    from regard.check.sandbox.schema import from_builtins

    examine = _examination(name, load, args, inputs, SEARCH_SHARE * timeout)
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
    except Exception as error:
        if (fault := fault_reason(error)) is None:
            raise
        reason, notes = fault, ()
    return Report(name, "undetermined", reasons=(reason,), notes=notes)


def _examination(
    name: str,
    load: Callable[[list[str]], Any],
    args: Mapping[str, Any],
    inputs: Mapping[str, Any] | str | None,
    seconds: float,
) -> Callable[[], Any]:
    """What the other process does: it loads an implementation and judges it; its findings as JSON holds them."""
    from regard.check.conclusion import conclude
    from regard.check.report.findings import Findings
    from regard.check.sandbox.answer import wants_memory
    from regard.check.sandbox.faults import fault_reason
    from regard.check.sandbox.schema import to_builtins
    from regard.check.sandbox.torch_settings import UserSettings
    from regard.check.source.expressions import with_values
    from regard.check.time_limit import time_limit

    def findings(notes: list[str]) -> Findings:
        settings = UserSettings()
        with settings.adopted():
            with settings.on():
                implementation = load(notes)
                values = with_values(args, implementation)
            with time_limit(seconds):
                return conclude(implementation, values, settings, inputs)

    def examine() -> Any:
        notes: list[str] = []
        try:
            found = findings(notes)
        except InputError:
            raise
        except Exception as error:
            fault = None if wants_memory(error) else fault_reason(error)
            if fault is None:
                raise
            found = Findings(name, undetermined=(fault,))
        return to_builtins(replace(found, notes=(*notes, *found.notes)))

    return examine


def __dir__() -> list[str]:
    return sorted(__all__)


class _CallablePackage(ModuleType):
    """A package that can be called, since the function has the same name."""

    __signature__ = signature(check)

    def __call__(self, implementation: Any, **options: Any) -> Report | Equivalence:
        found: Report | Equivalence = check(implementation, **options)
        return found


sys.modules[__name__].__class__ = _CallablePackage
