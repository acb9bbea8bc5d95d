"""The file of an exercise: written, recognized, and whether its stub is filled in."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import InputError
from regard.exercises.catalog import EXERCISES
from regard.exercises.exercise import Exercise

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["exercise_in", "is_stub", "sheet_text", "statement_text"]

MARKER = re.compile(r"^# regard exercise (\d\d) [a-z-]+ *$", re.MULTILINE)
"""The line by which a file is known for an exercise."""
MARKER_BYTES = 4096
"""It stands in the beginning of the file."""
WIDTH = 100


def exercise_in(path: str | Path) -> Exercise | None:
    """The exercise that a file was written for, by its marker; None where it has none, or cannot be read.

    Args:
        path: of a file.
    """
    with suppress(OSError, ValueError), open(path, "rb") as stream:
        found = MARKER.search(stream.read(MARKER_BYTES).decode("utf-8", "replace").replace("\r", ""))
        if found is not None:
            return next((each for each in EXERCISES if each.number == int(found[1])), None)
    return None


def is_stub(path: str | Path, exercise: Exercise) -> bool:
    """Whether the function, or a method of the class, still has nothing but the stub's line; read from the text.

    Args:
        path: of a file.
        exercise: whose stub it is.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    node = next((each for each in tree.body if getattr(each, "name", "") == exercise.name), None)
    if isinstance(node, ast.ClassDef):
        return any(_is_empty(each.body) for each in node.body if isinstance(each, ast.FunctionDef))
    return isinstance(node, ast.FunctionDef) and _is_empty(node.body)


def _is_empty(body: Sequence[ast.stmt]) -> bool:
    """Whether statements are a docstring, ``...``, ``pass`` or ``raise NotImplementedError``."""
    for each in body:
        if isinstance(each, ast.Pass) or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
            continue
        if isinstance(each, ast.Raise) and each.exc is not None:
            raised = each.exc.func if isinstance(each.exc, ast.Call) else each.exc
            if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
                continue
        return False
    return True


def sheet_text(exercise: Exercise) -> str:
    """The text of an exercise's file: marker, statement, stub, and the numbers of the course."""
    imports = ["import torch"]
    imports += ["from torch import nn"] if "nn." in exercise.stub else []
    numbers = exercise.numbers
    if numbers.startswith("import regard\n\n"):
        imports, numbers = [*imports, "", "import regard"], numbers.removeprefix("import regard\n\n")
    main = textwrap.indent(f"{numbers}\nprint({exercise.call})", "    ")
    return (
        f'# regard exercise {exercise.code}\n"""{statement_text(exercise)}"""\n\n'
        + "\n".join(imports)
        + f"\n\n\n{exercise.stub}\n\n\n"
        + f'if __name__ == "__main__":  # the numbers of the course\n{main}\n'
    )


def statement_text(exercise: Exercise) -> str:
    """What an exercise asks for, with the result on the numbers of the course."""
    sections = [
        f"Exercise {exercise.number:02d}: {exercise.title} ({exercise.page_title})",
        "",
        _wrapped(f"{exercise.name}: {exercise.statement}"),
        "",
        *(_wrapped(line, "    ") for line in exercise.shapes),
        "",
        *(_wrapped(line, "    ") for line in exercise.formula),
        "",
        "On the numbers of the course, at the end of this file, the result should be:",
        "",
        *_expected(exercise),
        "",
        f"Check it: regard exercise {exercise.number:02d} --check    Hints: regard exercise {exercise.number:02d} "
        f"--hint",
        "",
    ]
    return "\n".join(sections)


def _wrapped(text: str, indent: str = "") -> str:
    more = indent + "  " if indent else ""
    return textwrap.fill(text.strip(), WIDTH, initial_indent=indent, subsequent_indent=more, break_on_hyphens=False)


def _expected(exercise: Exercise) -> list[str]:
    """The definition's result on the numbers of the course, to four decimals."""
    from regard.exercises.checking.examination import course_result

    names, results = course_result(exercise)
    lines = []
    for name, result in zip(names or [""] * len(results), results, strict=True):
        lines += [f"    {name}"] if name else []
        lines += [f"    {row}" for row in _rows(result)]
    return lines


def _rows(result: Tensor) -> list[str]:
    """A tensor as lines of numbers; matrices of several are apart."""
    if result.ndim > 2:
        blocks = [_rows(each) for each in result]
        return [line for number, block in enumerate(blocks) for line in ([""] if number else []) + block]
    rows = result.reshape(1, -1) if result.ndim < 2 else result
    if bool((rows == rows.round()).all()):
        return [" ".join(f"{int(number):4d}" for number in row.tolist()) for row in rows]
    return [" ".join(f"{number + 0.0:9.4f}" for number in row.tolist()) for row in rows]


def refuse_other(path: str | Path, exercise: Exercise) -> None:
    """Refuse a file whose marker names another exercise.

    Raises:
        InputError: it does.
    """
    found = exercise_in(path)
    if found is not None and found is not exercise:
        raise InputError(f"{path} is the file of exercise {found.code}, not of {exercise.code}")
