"""A line of the user's code, as traces, findings and reports name it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CodeLocation"]


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
