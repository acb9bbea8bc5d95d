"""Arguments that may be left out by their default, and that the code reads before it asks whether they are there."""

from __future__ import annotations

import ast
import inspect
import textwrap
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.sandbox.faults import is_users, user_line
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["optional_argument_findings"]


def optional_argument_findings(invocation: Invocation) -> Iterator[Finding]:
    """An argument that is None by default, where a call without it raises at a line before the one that asks for None.

    Args:
        invocation: a call to which it has to be given, as no other runs.
    """
    target = invocation.target
    try:
        parameters = inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters
    except (ValueError, TypeError):
        return
    for name in invocation.arguments:
        if name not in parameters or parameters[name].default is not None:
            continue
        try:
            invocation.run({**invocation.arguments, name: None})
        except Failed as failure:
            error = failure.__cause__
            if isinstance(error, AttributeError | TypeError) and (read := _read_too_early(error)) is not None:
                message = f"{name} is None by default, and every call without it raises: {read}"
                yield Finding("violation", "asked-before-read", "call", message, user_line(error))
                return


def _read_too_early(error: Exception) -> str | None:
    """What a line does with an argument that is None, where one further down asks for that; None of other errors."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    if not frames or not is_users(frames[-1][0].f_code):
        return None
    frame, line = frames[-1]
    body = _body(frame)
    at = line - frame.f_code.co_firstlineno + 1
    for number, statement in enumerate(body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return):
            continue  # what stands under a condition may be asked for by that
        if statement.lineno <= at <= (statement.end_lineno or statement.lineno):
            for each in ast.walk(statement):
                name = _read(each)
                if name in _arguments(frame) and frame.f_locals[name] is None and _asks(body[number + 1 :], name):
                    return f"{ast.unparse(each)} is read before {name} is asked for"
    return None


def _body(frame: FrameType) -> list[ast.stmt]:
    """The statements of the function of a frame; none where its text is not known."""
    try:
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(frame.f_code))).body
    except (OSError, SyntaxError, ValueError):
        return []
    return defined.body if isinstance(defined, ast.FunctionDef) else []


def _arguments(frame: FrameType) -> tuple[str, ...]:
    code = frame.f_code
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _read(node: ast.AST) -> Any:
    """The name of what a node reads an attribute or a part of."""
    is_read = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name)
    return node.value.id if is_read else None  # type: ignore[attr-defined]


def _asks(statements: list[ast.stmt], name: str) -> bool:
    """Whether a condition in some statements asks whether a name is None."""
    for each in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Is | ast.IsNot):
            sides = (each.left, each.comparators[0])
            if any(isinstance(one, ast.Name) and one.id == name for one in sides) and any(
                isinstance(one, ast.Constant) and one.value is None for one in sides
            ):
                return True
    return False
