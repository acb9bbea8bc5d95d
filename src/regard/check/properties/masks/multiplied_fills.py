"""Scores that are multiplied by the number that blocked ones are to be replaced by."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.properties.masks.filled_both_ways import written_number
from regard.check.target.argument import nodes_of

__all__ = ["multiplied_fill_line_findings"]

LARGE = -1e3
"""A fill below it is meant to hide a key."""
FULL = frozenset({"full", "full_like", "new_full"})


def multiplied_fill_line_findings(target: Any) -> Iterator[Finding]:
    """A line that multiplies scores by a matrix that was filled with -1e9 or the like, on the way into a softmax.

    A score of 0 stays 0 then, and a negative one becomes the largest of all. To be added to scores, a mask of ones may
    be multiplied by -1e9: then the product itself goes into no softmax.

    Args:
        target: what was called.
    """
    for part, text in parts_of(target):
        for function in nodes_of(text, ast.FunctionDef):
            assigned = [
                (each.targets[0].id, each)
                for each in ast.walk(function)
                if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
            ]
            filled = {name for name, each in assigned if _is_filled(each.value)} & _written_with_numbers(function)
            taken = {name for each in ast.walk(function) if (name := _taken_by_a_softmax(each))}
            for name, each in assigned:
                match each.value:
                    case ast.BinOp(left=left, op=ast.Mult(), right=right):
                        factors = {one.id for one in (left, right) if isinstance(one, ast.Name)}
                    case _:
                        continue
                if name in taken and (fills := factors & filled - {name}):
                    message = (
                        f"scores are multiplied by {min(fills)}, which is a large negative number where they are to be "
                        "hidden: a score of 0 stays 0, and a negative one becomes the largest"
                    )
                    yield Finding("violation", "blocked-scores", "mask", message, line_in(part, each.lineno))
                    return


def _is_filled(value: ast.expr) -> bool:
    """Whether a tensor is made of one large negative number, by full() or its like, on whatever device."""
    for each in ast.walk(value):
        if not isinstance(each, ast.Call) or ast.unparse(each.func).rpartition(".")[2] not in FULL:
            continue
        told = [*each.args[1:2], *(one.value for one in each.keywords if one.arg == "fill_value")]
        if any((number := written_number(one)) is not None and number <= LARGE for one in told):
            return True
    return False


def _written_with_numbers(function: ast.FunctionDef) -> set[str]:
    """The names of what is written into in places, with positive numbers alone: a mask, and no scores."""
    numbers: dict[str, list[float | None]] = {}
    for each in ast.walk(function):
        match each:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))], value=value):
                numbers.setdefault(name, []).append(written_number(value))
            case _:
                pass
    return {name for name, several in numbers.items() if all(each is not None and each > 0 for each in several)}


def _taken_by_a_softmax(node: ast.AST) -> str:
    """The name of what a softmax takes; empty of any other line."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="softmax")) if name not in ("torch", "F"):
            return name
        case ast.Call(func=ast.Attribute(attr="softmax") | ast.Name(id="softmax"), args=[ast.Name(id=name), *_]):
            return name
        case _:
            return ""
