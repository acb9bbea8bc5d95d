"""Arguments that may be left out by their default, None, and that the code reads all the same."""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch import nn

from regard.check.properties.code import line_in
from regard.check.properties.finding import Finding
from regard.check.sandbox.faults import is_users, user_line
from regard.check.target import Invocation
from regard.check.target.argument import body_of, source_of, tree_of
from regard.check.target.errors import Failed
from regard.check.target.preparation import modules_in

__all__ = ["optional_argument_findings"]


def optional_argument_findings(invocation: Invocation) -> Iterator[Finding]:
    """A call that raises without an argument that is None by default, where the code asks for None, and in vain.

    It asks further down than it reads the argument, or whether something else is None, which never is. Where nothing
    is asked, the default is taken to be there for other code, and the argument to be required.

    Args:
        invocation: a call.
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
                yield Finding("violation", "default-runs", "call", message, user_line(error))
                return
            for function, asked, number in _below_others(target, name):
                message = (
                    f"{name} is None by default, and every call without it raises: it is read where {asked} is not "
                    f"None, which always holds, and not where {name} is not"
                )
                yield Finding("violation", "default-runs", "call", message, line_in(function, number))
                return


def _read_too_early(error: Exception) -> str | None:
    """What a line does with an argument that is None, where one further down asks for that; None of other errors."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    if not frames or not is_users(frames[-1][0].f_code):
        return None
    frame, line = frames[-1]
    try:
        body = body_of(inspect.getsource(frame.f_code))
    except OSError:
        return None
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


def _below_others(target: Any, name: str) -> Iterator[tuple[Any, str, int]]:
    """Where an argument stands below `if OTHER is not None:` alone: the function, what it asks for, and the line."""
    kinds = (type(each) for owner in modules_in(target) for each in owner.modules())
    for kind in dict.fromkeys(each for each in kinds if each.__module__.partition(".")[0] != "torch"):
        function = vars(kind).get("forward")
        parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
        if name not in parameters or parameters[name].default is not None:
            continue
        tree = tree_of(source_of(function))
        guards = [(each, asked) for each in ast.walk(tree) if isinstance(each, ast.If) and (asked := _asked(each.test))]
        if name in {asked for _, asked in guards}:
            continue
        for each, asked in guards:
            names = {one.id for part in each.body for one in ast.walk(part) if isinstance(one, ast.Name)}
            if name in names and asked not in names and _is_always_there(tree, parameters, asked):
                yield function, asked, each.lineno


def _asked(test: ast.expr) -> str:
    """The name that a condition asks not to be None; empty of any other condition."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return name
        case _:
            return ""


def _is_always_there(tree: ast.AST, parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Whether a name is a required argument or what a call made, and something is computed with it everywhere."""
    parameter = parameters.get(name)
    if parameter is not None:
        is_required = parameter.default is parameter.empty
        return is_required and not any(each in str(parameter.annotation) for each in ("None", "Optional"))
    made = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in each.targets)
    ]
    # A method of its own tensor, as value.view(...): None has none.
    return any(isinstance(each, ast.Call) and ast.unparse(each).startswith(f"{name}.") for each in made)
