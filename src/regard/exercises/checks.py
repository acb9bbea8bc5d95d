"""A learner's file checked in a process of its own; the verdict is decided here."""

from __future__ import annotations

import os
from pathlib import Path

from regard.errors import InputError
from regard.exercises.catalog import find
from regard.exercises.checking.findings import ROUNDING, Findings
from regard.exercises.exercise import Exercise
from regard.exercises.report import ExerciseReport, ExerciseVerdict
from regard.exercises.sheet import exercise_in, is_stub, refuse_other

__all__ = ["DEFAULT_MEMORY", "DEFAULT_TIMEOUT", "check"]

DEFAULT_TIMEOUT = 60.0
"""Seconds after which the code is stopped."""
DEFAULT_MEMORY = 4 * 2**30
"""Bytes that it may allocate."""


def check(
    path: str | Path,
    exercise: str | int | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
) -> ExerciseReport:
    """Check a learner's file: which step is wrong, why, and what should have come out on the course's numbers.

    The function or class of the exercise is called with the course's numbers and with others, in float64, and its
    results are held against the definition. A mistake is named only if the definition with this mistake returns the
    learner's numbers to 1e-9. The code runs in a process of its own with a limit of time and memory. That process is no
    sandbox: it guards against accidents, not against code that means harm.

    Args:
        path: the file.
        exercise: its number or slug; by default the one that the file's marker names.
        timeout: seconds after which it is stopped.
        memory: bytes that it may allocate; None for no limit.

    Returns:
        The report; ``print(report)`` explains it.

    Raises:
        InputError: there is no such file, it cannot be imported, it lacks the function or class, or it is the file of
            no exercise, or of another one.

    Example:
        >>> from regard import exercises
        >>> path = exercises.write("05")
        >>> exercises.check(path).verdict
        'not filled in yet'
    """
    from regard.check.sandbox.faults import fault_reason
    from regard.check.sandbox.process import Stopped, isolated
    from regard.check.sandbox.schema import from_builtins, to_builtins
    from regard.exercises.checking.examination import examine

    file = str(path)
    asked = _asked(file, exercise)
    if is_stub(file, asked):
        return _report(asked, file, Findings(is_stub=True))
    try:
        found = isolated(lambda: to_builtins(examine(file, asked)), timeout=timeout, memory=memory, watch=Path(file))
        return _report(asked, file, from_builtins(Findings, found))
    except Stopped as stopped:
        where = f": {stopped.where.text}" if stopped.where is not None and stopped.where.text else ""
        reason = f"{stopped.reason}{where}"
    except InputError:
        raise
    except ValueError as error:
        reason = f"what the check sent back cannot be read: {error}"
    except Exception as error:
        if (fault := fault_reason(error)) is None:
            raise
        reason = fault
    return _report(asked, file, Findings(reasons=(reason,)))


def _asked(file: str, exercise: str | int | None) -> Exercise:
    """The exercise that a file is checked for.

    Raises:
        InputError: there is no such file or exercise, or the file is of none, or of another one.
    """
    if not os.path.isfile(file):
        raise InputError(f"{file}: no such file")
    if exercise is not None:
        asked = find(exercise)
        refuse_other(file, asked)
        return asked
    marked = exercise_in(file)
    if marked is None:
        raise InputError(
            f"{file} is the file of no exercise: it lacks the line '# regard exercise NN NAME' that regard exercise NN "
            "writes; name the exercise, as in regard exercise 05 --check FILE"
        )
    return marked


def _report(exercise: Exercise, file: str, found: Findings) -> ExerciseReport:
    """The report of some findings: right only where there were calls, all of them hold, and no mistake was found."""
    verdict: ExerciseVerdict = "undetermined"
    if found.is_stub:
        verdict = "not filled in yet"
    elif found.mistakes:
        verdict = "wrong"
    elif 0 < found.calls == found.right and 0 <= found.error <= ROUNDING and not found.reasons:
        verdict = "right"
    return ExerciseReport(
        exercise.number,
        exercise.slug,
        exercise.name,
        file,
        verdict,
        step=found.mistakes[0].step if found.mistakes else None,
        causes=found.mistakes,
        example=found.example,
        calls=found.calls,
        right_calls=found.right,
        error=found.error,
        reasons=found.reasons or (("nothing was compared with the definition",) if verdict == "undetermined" else ()),
        notes=found.notes,
    )
