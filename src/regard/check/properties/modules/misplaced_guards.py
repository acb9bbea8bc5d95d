"""Arguments that may be left out, and that a line reads below a condition on something else."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.properties.code import line_in
from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.target.argument import source_of, tree_of
from regard.check.target.preparation import modules_in

__all__ = ["misplaced_guard_findings"]


def misplaced_guard_findings(invocation: Invocation) -> Iterator[Finding]:
    """A call that fails without a mask whose default is None, as `if value is not None:` stands where it is read.

    The condition asks for what is never None: a required argument, or what the function has computed before. Without
    such a condition the default is taken to be there for other code, and the mask to be required.

    Args:
        invocation: a call.
    """
    given = [each for each in invocation.masks if each in invocation.arguments]
    if not given or not isinstance(invocation.target, nn.Module):
        return
    for owner in modules_in(invocation.target):
        for kind in dict.fromkeys(type(each) for each in owner.modules()):
            function = vars(kind).get("forward")
            if kind.__module__.partition(".")[0] == "torch" or not inspect.isfunction(function):
                continue
            for name, asked, number in _below_others(function):
                if name not in given or not _fails_without(invocation, name):
                    continue
                message = (
                    f"{name} may be left out by its default, and a call without it fails: it is read where {asked} is "
                    f"not None, which always holds, and not where {name} is not"
                )
                yield Finding("violation", "default-runs", "mask", message, line_in(function, number))
                return


def _below_others(function: Any) -> Iterator[tuple[str, str, int]]:
    """Arguments whose default is None that stand below `if OTHER is not None:` alone, with that and the line of it."""
    parameters = inspect.signature(function).parameters
    optional = {name for name, each in parameters.items() if each.default is None}
    tree = tree_of(source_of(function))
    guards = [(each, asked) for each in ast.walk(tree) if isinstance(each, ast.If) and (asked := _asked(each.test))]
    guarded = {asked for _, asked in guards}
    for each, asked in guards:
        names = [one.id for part in each.body for one in ast.walk(part) if isinstance(one, ast.Name)]
        if asked in names or asked in optional or not _is_always_there(tree, function, asked):
            continue
        for name in dict.fromkeys(names):
            if name in optional - guarded:
                yield name, asked, each.lineno


def _asked(test: ast.expr) -> str:
    """The name that a condition asks not to be None; empty of any other condition."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return name
        case _:
            return ""


def _is_always_there(tree: ast.AST, function: Any, name: str) -> bool:
    """Whether a name is a required argument or what a call made, and something is computed with it everywhere."""
    parameter = inspect.signature(function).parameters.get(name)
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


def _fails_without(invocation: Invocation, name: str) -> bool:
    try:
        invocation.run({key: value for key, value in invocation.arguments.items() if key != name})
    except Failed:
        return True
    return False
