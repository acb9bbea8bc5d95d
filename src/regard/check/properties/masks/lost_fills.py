"""Lines that hide numbers in a new tensor, which they do not keep, wherever the code has them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of

__all__ = ["lost_fill_line_findings"]

FILLS = frozenset({"index_fill", "masked_fill", "masked_scatter", "tril", "triu"})
"""Methods and functions that return a new tensor; those that write into the old one end with an underscore."""


def lost_fill_line_findings(target: Any) -> Iterator[Finding]:
    """A line that calls ``masked_fill``, or the like, and does nothing else, also where no call that ran goes by it.

    As on a condition on how an option was told.

    Args:
        target: what was called.
    """
    for part, text in parts_of(target):
        kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
        own = {each.name for each in nodes_of(text, ast.FunctionDef)}
        for call in (each.value for each in nodes_of(text, ast.Expr)):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            name = call.func.attr
            is_of_itself = isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls", "super")
            is_written = any(each.arg in ("out", "inplace") for each in call.keywords)
            if name in FILLS - own and not is_of_itself and not is_written:
                message = f"what {name} returns is not kept: what it should have hidden is read all the same"
                yield Finding("violation", "mask-read", "mask", message, line_in(kind, call.lineno))
                return
