"""Results that a line gives a name, and that no later line reads."""

from __future__ import annotations

import ast
import linecache
from typing import TypeGuard

from regard.check.location import CodeLocation

__all__ = ["is_lost"]


def is_lost(line: CodeLocation) -> bool:
    """Whether a line gives a result a name that no later line reads before it is given anew, or no name at all.

    A line that reads the name to give it anew, as on a condition, reads it for nothing.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(line.file)))
    except SyntaxError:
        return False
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _holds(each, line)]
    if not functions:
        return False
    function = max(functions, key=lambda each: each.lineno)
    blocks = [value for part in ast.walk(function) for value in vars(part).values() if isinstance(value, list)]
    for block in blocks:
        at = [number for number, each in enumerate(block) if _is_of_a_call(each) and _holds(each, line)]
        if len(at) == 1:
            statement, behind = block[at[0]], block[at[0] + 1 :]
            names = {ast.unparse(each) for each in getattr(statement, "targets", ())}
            anew = next((each.lineno for each in behind if names and names & _given(each)), None)
            last = (function.end_lineno or statement.lineno) if anew is None else anew
            own = {id(one) for each in ast.walk(function) if names & _given(each) for one in ast.walk(each)}
            return all(name.isidentifier() for name in names) and not any(
                isinstance(each, ast.Name)
                and each.id in names
                and (id(each) not in own or each.lineno == anew)
                and isinstance(each.ctx, ast.Load)
                and (statement.end_lineno or statement.lineno) < each.lineno <= last
                for each in ast.walk(function)
            )
    return False


def _holds(node: ast.stmt, line: CodeLocation) -> bool:
    return node.lineno <= line.line <= (node.end_lineno or node.lineno)


def _is_of_a_call(node: object) -> TypeGuard[ast.Assign | ast.Expr]:
    """Whether a statement is a call, or gives names to what one returns."""
    return isinstance(node, ast.Assign | ast.Expr) and isinstance(node.value, ast.Call)


def _given(node: ast.AST) -> set[str]:
    """The names that an assignment gives."""
    return {ast.unparse(each) for each in node.targets} if isinstance(node, ast.Assign) else set()
