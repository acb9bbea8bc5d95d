"""A folder of submissions as a table: who, which exercise, which step, which cause, which line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.exercises.catalog import EXERCISES
from regard.exercises.checks import DEFAULT_MEMORY, check
from regard.exercises.exercise import Exercise
from regard.exercises.report import ExerciseReport
from regard.exercises.sheet import exercise_in

__all__ = ["ClassTable", "Submission", "SubmissionRow", "check_class", "submissions"]

SUBMISSION_TIMEOUT = 20.0
"""Seconds for each submission, by default."""
NUMBERED = re.compile(r"(\d{1,2})(?:[ _-]+(.*))?", re.DOTALL)
"""A file name that begins with the number of an exercise."""
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets take for the beginning of a formula."""


@dataclass(frozen=True)
class Submission:
    """A file that a student handed in."""

    student: str
    path: Path
    exercise: Exercise | None
    """None where neither a marker nor the file's name tells it."""


@dataclass(frozen=True)
class SubmissionRow:
    """What came out of one submission."""

    student: str
    exercise: str
    """"05 projections"; empty where it is not known."""
    verdict: str
    """As of `ExerciseReport`; "undetermined" also where the file cannot be checked at all."""
    step: str
    """The first wrong step; empty where there is none."""
    cause: str
    """The ids of the mistakes, with commas."""
    line: str
    """Where the first mistake is, as "21: return x @ w_q"; empty where it is not known."""
    message: str
    """What is wrong, or why it could not be checked."""
    file: str
    """From the folder of all submissions."""


@dataclass(frozen=True)
class ClassTable:
    """All submissions of a folder, by student and exercise."""

    rows: tuple[SubmissionRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The rows as dicts of texts."""
        return {"rows": [asdict(row) for row in self.rows]}

    def to_csv(self) -> str:
        """The table as CSV with a header.

        A cell that a spreadsheet would take for a formula, since it begins with ``=``, ``+``, ``-``, ``@``, a tab or a
        carriage return, gets an apostrophe before it: names of files and lines of code are somebody else's texts.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(field.name for field in fields(SubmissionRow))
        for row in self.rows:
            writer.writerow(_harmless(cell) for cell in astuple(row))
        return stream.getvalue()

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        students = len({row.student for row in self.rows})
        return f"{_counted(len(self.rows), 'submission')} of {_counted(students, 'student')}: {told}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _harmless(cell: str) -> str:
    cell = cell.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"'{cell}" if cell.lstrip(" ").startswith(FORMULA_SIGNS) else cell


def submissions(folder: str | Path) -> list[Submission]:
    """Every Python file that students handed in, by student and exercise.

    ``folder/STUDENT/05_projections.py`` and ``folder/05_STUDENT.py`` are both understood, and may stand side by side. A
    file's marker tells the exercise; where it has none, the number that its name begins with does.

    Args:
        folder: of all submissions.

    Raises:
        InputError: there is no such folder, or no Python file in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    found = [*_of_folder(folder)]
    if not found:
        raise InputError(
            f"{folder} has no submissions: they are STUDENT/05_projections.py or 05_STUDENT.py, with any number and "
            f"name"
        )
    return sorted(found, key=lambda each: (each.student, each.exercise.number if each.exercise else 0, str(each.path)))


def _of_folder(folder: Path) -> Iterator[Submission]:
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")]):
        parts = path.relative_to(folder).parts
        if not path.is_file() or any(part.startswith((".", "__")) for part in parts):
            continue
        number = NUMBERED.fullmatch(path.stem)
        student = parts[0] if len(parts) > 1 else (number[2] if number and number[2] else path.stem)
        numbered = next((each for each in EXERCISES if number and each.number == int(number[1])), None)
        yield Submission(student, path, exercise_in(path) or numbered)


def check_class(
    folder: str | Path,
    *,
    timeout: float = SUBMISSION_TIMEOUT,
    memory: int | None = DEFAULT_MEMORY,
    on_progress: Callable[[int, int], None] | None = None,
) -> ClassTable:
    """Check every submission of a folder, each in a process of its own.

    One that crashes, never ends or cannot be imported is a row like the others.

    Args:
        folder: with ``STUDENT/05_projections.py`` or ``05_STUDENT.py``; see `submissions`.
        timeout: seconds for each submission.
        memory: bytes that each may allocate; None for no limit.
        on_progress: is called with how many are done, and how many there are.

    Raises:
        InputError: there is no such folder, or no Python file in it.

    Example:
        >>> from regard import exercises
        >>> exercises.check_class("results").to_csv()  # doctest: +SKIP
    """
    several = submissions(folder)
    rows = []
    for done, each in enumerate(several):
        if on_progress is not None:
            on_progress(done, len(several))
        rows.append(_row(each, Path(folder), timeout, memory))
    if on_progress is not None:
        on_progress(len(several), len(several))
    return ClassTable(tuple(rows))


def _row(submission: Submission, folder: Path, timeout: float, memory: int | None) -> SubmissionRow:
    file = str(submission.path.relative_to(folder))
    if submission.exercise is None:
        reason = "neither a marker in the file nor a number in its name tells the exercise"
        return SubmissionRow(submission.student, "", "undetermined", "", "", "", reason, file)
    try:
        report = check(submission.path, submission.exercise.number, timeout=timeout, memory=memory)
    except (InputError, OSError) as error:
        return SubmissionRow(
            submission.student, submission.exercise.code, "undetermined", "", "", "", _one_line(str(error)), file
        )
    return _row_of(report, submission, file)


def _row_of(report: ExerciseReport, submission: Submission, file: str) -> SubmissionRow:
    first = report.causes[0] if report.causes else None
    place = first.location if first is not None else None
    return SubmissionRow(
        submission.student,
        f"{report.number:02d} {report.slug}",
        report.verdict,
        report.step or "",
        ", ".join(cause.id for cause in report.causes),
        "" if place is None else f"{place.line}: {place.text}",
        _one_line(first.message if first is not None else "; ".join(report.reasons)),
        file,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
