"""The learner's line that makes a mistake: by the numbers that it computes, or by how it reads."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.search.lines import Record, place_of, recording

__all__ = ["LearnerCode"]


class LearnerCode:
    """What a learner wrote, as text.

    Args:
        file: the learner's.
        name: of the function or the class.
    """

    def __init__(self, file: str, name: str) -> None:
        linecache.checkcache(file)
        self.file = file
        self._lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        self._numbers = _code_lines(self._lines, name)

    def at(self, line: int | None) -> CodeLocation | None:
        """A line of the file."""
        if line is None or not 1 <= line <= len(self._lines):
            return None
        return CodeLocation(self.file, line, self._lines[line - 1].strip())

    def records(self, work: Callable[[], object]) -> list[Record]:
        """Every tensor that some work makes in a line of the file."""
        with suppress(Exception), recording(self.file) as records:
            work()
        return records

    def place(self, records: Sequence[Record], trail: Sequence[Tensor], pattern: str) -> CodeLocation | None:
        """The line of a mistake.

        Args:
            records: of a call.
            trail: the tensors of the step in which the mistake shows, the first ones first.
            pattern: how such a line reads.

        Returns:
            The line that makes one of the tensors; else the first one that reads like it, of the code of this exercise;
            else the last ``return``.
        """
        for wanted in trail:
            found = place_of(records, wanted) if wanted.numel() else None
            if found is not None:
                return found
        return (self.by_pattern(pattern) if pattern else None) or self.result_line()

    def by_pattern(self, pattern: str) -> CodeLocation | None:
        """The line that reads like a regular expression: of its alternatives the first counts most.

        Of several such lines, it is the last ``return``, and else the first.
        """
        for alternative in _alternatives(pattern):
            found = [n for n in self._numbers if re.search(alternative, self._lines[n - 1].partition("#")[0])]
            if found:
                return self.at(next((n for n in reversed(found) if n in self._returns()), found[0]))
        return None

    def _returns(self) -> list[int]:
        return [number for number in self._numbers if re.match(r"\s*return\b", self._lines[number - 1])]

    def result_line(self) -> CodeLocation | None:
        """The last ``return``; the last line where there is none."""
        numbers = self._returns() or self._numbers
        return self.at(numbers[-1]) if numbers else None


def _alternatives(pattern: str) -> list[str]:
    """The parts of a regular expression between the bars that stand in no parentheses."""
    parts, depth, escaped = [""], 0, False
    for sign in pattern:
        depth += 0 if escaped else {"(": 1, ")": -1}.get(sign, 0)
        if sign == "|" and not depth and not escaped:
            parts.append("")
            continue
        parts[-1] += sign
        escaped = sign == "\\" and not escaped
    return parts


def _code_lines(lines: Sequence[str], name: str) -> list[int]:
    """The lines of a function's or a class's code, without docstrings and without the __init__ of the stub."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.parse("\n".join(lines))
        node = next((each for each in tree.body if getattr(each, "name", "") == name), None)
        if isinstance(node, ast.ClassDef):
            functions = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
        else:
            functions = [node] if isinstance(node, ast.FunctionDef) else []
        found: list[int] = []
        for function in functions:
            body = function.body[1:] if ast.get_docstring(function) is not None else function.body
            if body:
                found += range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)
        return [
            number for number in found if lines[number - 1].strip() and not lines[number - 1].lstrip().startswith("#")
        ]
    return []
