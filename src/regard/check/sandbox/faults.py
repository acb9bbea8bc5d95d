"""Whether an error is a fault of regard's own; a user reads it as a reason, and never as a traceback."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from pathlib import Path
from types import CodeType

import torch

from regard.check.location import CodeLocation
from regard.check.sandbox.answer import error_text, first_line

__all__ = ["fault_reason", "is_users", "user_line"]

PACKAGE = Path(__file__).parents[2]
LIBRARIES = (Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parent)
"""Where neither regard's code nor the user's is."""
PASSED_THROUGH = frozenset({"__torch_function__", "__torch_dispatch__"})
"""Functions of regard's through which the user's code calls PyTorch: what PyTorch raises there is the user's."""
MAX_CHARACTERS = 300
"""Of the text of the error."""


def fault_reason(error: BaseException) -> str | None:
    """The reason for a report where regard's own code raised an error; None where it was the user's code.

    Args:
        error: as it was caught; the deepest line that is no library's tells whose it is.
    """
    found = _deepest(error)
    if found is not None and PACKAGE in (file := found[0]).parents:
        line = found[1]
        place = f"regard/{file.relative_to(PACKAGE).as_posix()}:{line}"
        text = first_line(error_text(error))[:MAX_CHARACTERS]
        return (
            f"a fault of regard's, not of your code: {text}, at {place}; please report it to the authors of regard, "
            "with this line and the code that was checked"
        )
    return None


def user_line(error: BaseException) -> CodeLocation | None:
    """The line of the user's code at which an error was raised; None where that was in regard's own."""
    found = _deepest(error)
    if found is None or PACKAGE in found[0].parents:
        return None
    file, line = str(found[0]), found[1]
    return CodeLocation(file, line, linecache.getline(file, line).strip())


def is_users(code: CodeType) -> bool:
    """Whether some code is of the user's: no library's, and not regard's."""
    file = Path(code.co_filename)
    return file.is_absolute() and not _is_library(file) and PACKAGE not in file.parents


def _deepest(error: BaseException) -> tuple[Path, int] | None:
    """The deepest line of an error that is no library's."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        is_known = file.is_absolute() and (not _is_library(file) or PACKAGE in file.parents)
        if is_known and frame.f_code.co_name not in PASSED_THROUGH:
            return file, line
    return None


def _is_library(file: Path) -> bool:
    parents = file.parents
    is_installed = any(parent.name in ("site-packages", "dist-packages") for parent in parents)
    return LIBRARIES[1] in parents or (LIBRARIES[0] in parents and not is_installed)
