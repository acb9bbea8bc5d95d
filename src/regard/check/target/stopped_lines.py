"""Lines of the user's code that an error came through: their statements, and the values of expressions."""

from __future__ import annotations

import ast
import linecache
import traceback
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

from regard.check.sandbox.faults import is_users

__all__ = ["Place", "condition_around", "evaluated", "statement_of", "stopped"]


@dataclass(frozen=True)
class Place:
    """Where the user's code stopped."""

    frame: FrameType
    line: int


@cache
def _statements_of(file: str) -> list[ast.stmt]:
    """All of a file, the outermost first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    found = [each for each in ast.walk(tree) if isinstance(each, ast.stmt)]
    return sorted(found, key=lambda each: (each.lineno, -(each.end_lineno or each.lineno)))


def _statements(place: Place) -> list[ast.stmt]:
    """The statements that its line is of, the outermost first."""
    several, line = _statements_of(place.frame.f_code.co_filename), place.line
    return [each for each in several if each.lineno <= line <= (each.end_lineno or each.lineno)]


def statement_of(place: Place) -> ast.stmt | None:
    """The innermost statement."""
    return next(reversed(_statements(place)), None)


def condition_around(place: Place) -> ast.If | None:
    """The innermost condition around it."""
    several = [each for each in _statements(place) if isinstance(each, ast.If)]
    return several[-1] if several else None


def stopped(error: Exception) -> list[Place]:
    """The lines of the user's code that an error came through, the innermost first."""
    frames = reversed(list(traceback.walk_tb(error.__traceback__)))
    return [Place(frame, line) for frame, line in frames if is_users(frame.f_code)]


def evaluated(written: ast.expr | None, place: Place) -> Any:
    """The value of an expression that reads tensors and their sizes, and changes nothing; None of any other."""
    if written is None:
        return None
    for each in ast.walk(written):
        if isinstance(each, ast.Call):
            name = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
            if name not in ("size", "dim", "ndimension", "len", "tuple", "list", "numel", "transpose", "permute"):
                return None
        elif isinstance(each, ast.Await | ast.Yield | ast.NamedExpr):
            return None
    try:
        return eval(
            compile(ast.Expression(written), "<shape>", "eval"), place.frame.f_globals, dict(place.frame.f_locals)
        )
    except Exception:
        return None
