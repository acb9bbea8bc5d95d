"""Arguments that are compared with themselves, each number with each other one, as those of the texts of a row."""

from __future__ import annotations

import ast
from functools import cache

from regard.check.target.argument import nodes_of

__all__ = ["is_compared_with_itself"]


@cache
def is_compared_with_itself(source: str, name: str) -> bool:
    """Whether the code asks which of its numbers are alike, as by ids[:, :, None] == ids[:, None, :].

    Args:
        source: the text of the code.
        name: of the argument.
    """
    ways = {name: ""} | {
        each.targets[0].id: way
        for each in nodes_of(source, ast.Assign)
        if isinstance(each.targets[0], ast.Name) and (way := _with_an_axis(each.value, name)) is not None
    }
    equal = (ast.Eq, ast.NotEq)
    pairs = [
        (each.left, each.comparators[0]) for each in nodes_of(source, ast.Compare) if isinstance(each.ops[0], equal)
    ]
    pairs += [
        (each.func.value, each.args[0])
        for each in nodes_of(source, ast.Call)
        if isinstance(each.func, ast.Attribute) and each.func.attr in ("eq", "ne") and len(each.args) == 1
    ]
    found = ({_way(side, name, ways) for side in pair} for pair in pairs)
    return any(None not in each and len(each) == 2 for each in found)


def _way(side: ast.expr, name: str, ways: dict[str, str]) -> str | None:
    """How the argument stands on a side of a comparison; None where it does not."""
    if isinstance(side, ast.Name):
        return ways.get(side.id)
    return _with_an_axis(side, name)


def _with_an_axis(value: ast.expr, name: str) -> str | None:
    """How an axis is added to an argument, as a text; None where it is something else."""
    taken, way = value, ""
    while not isinstance(taken, ast.Name):
        if isinstance(taken, ast.Subscript) and any(
            isinstance(each, ast.Constant) and each.value is None for each in ast.walk(taken.slice)
        ):
            way, taken = f"[{ast.unparse(taken.slice)}]{way}", taken.value
        elif (
            isinstance(taken, ast.Call)
            and isinstance(taken.func, ast.Attribute)
            and taken.func.attr in ("unsqueeze", "view", "reshape", "expand")
        ):
            given = ", ".join(map(ast.unparse, taken.args))
            way, taken = f".{taken.func.attr}({given}){way}", taken.func.value
        else:
            return None
    return way if taken.id == name and way else None
