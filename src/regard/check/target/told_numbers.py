"""The numbers that a call and its modules were told."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn

from regard.check.target.configs import is_config
from regard.check.target.preparation import modules_in
from regard.check.target.running import Invocation

__all__ = ["numbers_of_arguments", "numbers_told"]


def numbers_told(invocation: Invocation) -> Iterator[tuple[str, int]]:
    """The whole numbers that the call or its modules were told, by name."""
    given: list[tuple[str, Any]] = [*invocation.arguments.items()]
    if not isinstance(invocation.target, nn.Module):
        try:
            parameters = inspect.signature(invocation.target).parameters.values()
        except (ValueError, TypeError):
            parameters = {}.values()
        given += [(each.name, each.default) for each in parameters if each.name not in invocation.arguments]
    for module in modules_in(invocation.target):
        for each in module.modules():
            own = vars(each)
            is_map = bool({"W", "w"} & {*own})  # beside a width, H is the height of a picture
            given += [pair for pair in own.items() if not (is_map and pair[0] in ("H", "h"))]
    given += [part for _, value in given if is_config(value) for part in vars(value).items()]
    for name, value in given:
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def numbers_of_arguments(module: nn.Module) -> Iterator[tuple[str, str, int]]:
    """What a module keeps one number of that is more or less than it was told: the attribute, the argument, its value.

    `self.back = window - 1` keeps 3 where window=4 was told.
    """
    kind: type = type(module)
    for attribute, name, less in _kept_less(kind):
        kept = vars(module).get(attribute)
        if isinstance(kept, int) and not isinstance(kept, bool):
            yield attribute, name, kept + less


@cache
def _kept_less(kind: type) -> list[tuple[str, str, int]]:
    """The attributes that a constructor sets to an argument less a number, each with the argument and the number."""
    if kind.__module__.partition(".")[0] == "torch":
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.getattr_static(kind, "__init__"))))
    except (OSError, TypeError, SyntaxError):
        return []
    function = next((each for each in tree.body if isinstance(each, ast.FunctionDef)), None)
    names = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)} if function else set()
    assigned = [each for each in ast.walk(tree) if isinstance(each, ast.Assign) and len(each.targets) == 1]
    names -= {each.id for one in assigned for each in one.targets if isinstance(each, ast.Name)}  # of another value
    found = []
    for each in assigned:
        match each:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)],
                value=ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub() as sign, right=ast.Constant(value=by)),
            ) if name in names and isinstance(by, int):
                found.append((attribute, name, by if isinstance(sign, ast.Sub) else -by))
            case _:
                pass
    return found
