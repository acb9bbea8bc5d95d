"""Lines that hide nothing, wherever the code has them: they keep no result, or fill with what is nearly zero."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.properties.masks.filled_both_ways import written_number
from regard.check.target.argument import nodes_of

__all__ = ["faint_fill_line_findings", "lost_fill_line_findings"]

FILLS = frozenset({"index_fill", "masked_fill", "masked_scatter", "tril", "triu"})
"""Methods and functions that return a new tensor; those that write into the old one end with an underscore."""
FAINT = -1e-6
"""A fill between it and zero hides nothing: e to its power is 1."""
CHOICES = frozenset({"masked_fill", "masked_fill_", "where"})
"""Methods and functions that write a number over some of a tensor."""


def lost_fill_line_findings(target: Any) -> Iterator[Finding]:
    """A line that calls ``masked_fill``, or the like, and does nothing else, also where no call that ran goes by it.

    As on a condition on how an option was told.

    Args:
        target: what was called.
    """
    for part, text in parts_of(target):
        own = {each.name for each in nodes_of(text, ast.FunctionDef)}
        for call in (each.value for each in nodes_of(text, ast.Expr)):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            name = call.func.attr
            is_of_itself = isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls", "super")
            is_written = any(each.arg in ("out", "inplace") for each in call.keywords)
            if name in FILLS - own and not is_of_itself and not is_written:
                message = f"what {name} returns is not kept: what it should have hidden is read all the same"
                yield Finding("violation", "mask-read", "mask", message, line_in(part, call.lineno))
                return


def faint_fill_line_findings(target: Any) -> Iterator[Finding]:
    """A line that fills some numbers with one as -1e-9, where -1e9 is meant, also where no call that ran goes by it.

    As under an option that is off. Positive ones may stand in the place of a zero that is divided by.

    Args:
        target: what was called.
    """
    for part, text in parts_of(target):
        for node in (*nodes_of(text, ast.Assign), *nodes_of(text, ast.Call)):
            if isinstance(node, ast.Assign):
                filled = [node.value] if isinstance(node.targets[0], ast.Subscript) else []
            elif isinstance(node.func, ast.Attribute) and node.func.attr in CHOICES:
                filled = [*node.args, *(each.value for each in node.keywords)]
            else:
                continue
            numbers = [number for each in filled if (number := written_number(each)) is not None]
            faint = next((each for each in numbers if FAINT <= each < 0), None)
            if faint is not None:
                message = f"scores are filled with {faint:g}, which is nearly zero: what it should hide is read"
                yield Finding("violation", "blocked-scores", "mask", message, line_in(part, node.lineno))
                return
