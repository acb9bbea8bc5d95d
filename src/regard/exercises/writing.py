"""What a learner gets before the check: the statement, the file, the hints."""

from __future__ import annotations

import os
from pathlib import Path

from regard.errors import InputError
from regard.exercises.catalog import find
from regard.exercises.sheet import sheet_text, statement_text
from regard.files import ensure_writable, error_reason

__all__ = ["hint", "sheet_path", "statement", "write"]


def statement(exercise: str | int) -> str:
    """What an exercise asks for: statement, shapes, formula, and the result on the numbers of the course.

    Args:
        exercise: its number or slug.

    Raises:
        InputError: there is no such exercise.
    """
    return statement_text(find(exercise))


def hint(exercise: str | int, step: int = 1) -> str:
    """One of the three hints of an exercise; none of them is the solution.

    Args:
        exercise: its number or slug.
        step: 1, 2 or 3, each one telling more than the one before.

    Raises:
        InputError: there is no such exercise or hint.

    Example:
        >>> from regard import exercises
        >>> exercises.hint("scores", 1)
        'How many numbers has the result? Each of them is one dot product, as in exercise 01.'
    """
    hints = find(exercise).hints
    if not 1 <= step <= len(hints):
        raise InputError(f"there is no hint {step}: they are 1 to {len(hints)}")
    return hints[step - 1]


def sheet_path(exercise: str | int, path: str | Path | None = None) -> Path:
    """Where the file of an exercise is written.

    Args:
        exercise: its number or slug.
        path: a file, or a folder that it is written into under its own name; the current folder by default.

    Raises:
        InputError: there is such a file already, or it cannot be written.
    """
    target = Path(find(exercise).file_name if path is None else path)
    if target.is_dir():
        target = target / find(exercise).file_name
    if os.path.lexists(target):
        raise InputError(f"{target} is there already, and is not overwritten: check it, or write to another path")
    ensure_writable(target)
    return target


def write(exercise: str | int, path: str | Path | None = None) -> Path:
    """Write the file of an exercise: its statement, the shapes, a stub, and the numbers of the course.

    Args:
        exercise: its number or slug.
        path: see `sheet_path`.

    Returns:
        The file that was written.

    Raises:
        InputError: there is no such exercise, there is such a file already, or it cannot be written.
    """
    target = sheet_path(exercise, path)
    try:
        with open(target, "x", encoding="utf-8") as stream:  # never another file, also if one came just now
            stream.write(sheet_text(find(exercise)))
    except OSError as error:
        raise InputError(f"cannot write {str(target)!r}: {error_reason(error)}") from error
    return target
