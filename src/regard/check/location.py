"""A line of the user's code, as traces, findings and reports name it."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CodeLocation", "first_line"]


@dataclass(frozen=True)
class CodeLocation:
    """A line of the user's code."""

    file: str
    line: int
    """Counted from 1, as editors do; in a notebook, in its cell."""
    text: str
    cell: int | None = None
    """Of a notebook: which of its code cells, counted from 1."""

    def __str__(self) -> str:
        if self.cell is not None:
            return f"{self.file} cell {self.cell}, line {self.line}: {self.text}"
        return f"{self.file}:{self.line}: {self.text}"


def first_line(function: Callable[..., Any]) -> CodeLocation | None:
    """Where the code of a function or a method begins; None of what is not written in Python.

    Args:
        function: the function.
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return None
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return CodeLocation(code.co_filename, code.co_firstlineno, text)
