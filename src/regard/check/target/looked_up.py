"""In which table of vectors an argument is looked up, also by a part that it is handed on to."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from regard.check.target.argument import text_of
from regard.check.target.preparation import modules_in

__all__ = ["table_of"]

MAX_DEPTH = 4
"""Of calls in calls."""
_VIEWS = frozenset(
    ("clone", "contiguous", "cpu", "cuda", "detach", "expand", "flatten", "int", "long", "permute", "reshape")
    + ("squeeze", "t", "to", "transpose", "type", "unsqueeze", "view")
)
"""Methods that return the same ids, in other axes or of another type."""


def table_of(target: Any, name: str) -> nn.Embedding | None:
    """The table of vectors that the ids of an argument are looked up in; None where the code looks up nothing by it.

    Args:
        target: what is called.
        name: of the argument, as words in self.step(words[:, t]), where step calls self.embedding with them.
    """
    module = next(iter(modules_in(target)), None)
    call = type(module).forward if isinstance(target, nn.Module) else getattr(target, "__func__", None)
    return None if module is None or call is None else _inside(module, call, name, MAX_DEPTH)


def _inside(module: nn.Module, call: Callable[..., Any], name: str, depth: int) -> nn.Embedding | None:
    """The table that a function of a module looks an argument up in."""
    try:
        tree = ast.parse(textwrap.dedent(text_of(call)))
    except SyntaxError:
        return None
    for called, given in _handed_on(tree, name) if depth else ():
        part = _part(module, called)
        if isinstance(part, nn.Sequential) and len(part):
            part = part[0]
        if isinstance(part, nn.Embedding):
            return part
        owner, function = module, getattr(part, "__func__", None)
        if isinstance(part, nn.Module):
            owner, function = part, type(part).forward
        if function is None or getattr(function, "__module__", "torch.").startswith("torch."):
            continue
        taken = _parameter(function, given)
        found = _inside(owner, function, taken, depth - 1) if taken else None
        if found is not None:
            return found
    return None


def _handed_on(tree: ast.AST, name: str) -> Iterator[tuple[ast.expr, int | str]]:
    """What is called with the ids of a name, or with some of them, and the place or the keyword that they have there."""
    names = {name}
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            names |= {each.targets[0].id} if _base(each.value) in names else set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Call):
            given = [*enumerate(each.args), *((one.arg, one.value) for one in each.keywords if one.arg is not None)]
            yield from ((each.func, place) for place, value in given if _base(value) in names)


def _base(value: ast.expr) -> str:
    """The name of what an expression only views, as words in words[:, t].long(); empty of any other."""
    while not isinstance(value, ast.Name):
        if isinstance(value, ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS:
            value = value.func.value
        else:
            return ""
    return value.id


def _part(module: nn.Module, called: ast.expr) -> Any:
    """What an expression as self.encoder.embedding names; None of any other."""
    if isinstance(called, ast.Name):
        return module if called.id == "self" else None
    if isinstance(called, ast.Attribute):
        return getattr(_part(module, called.value), called.attr, None)
    return None


def _parameter(function: Callable[..., Any], given: int | str) -> str:
    """The name of the parameter of a method that takes what is given at a place, or by a keyword; empty without one."""
    names = [each.name for each in inspect.signature(function).parameters.values() if each.kind != each.VAR_POSITIONAL]
    if isinstance(given, str):
        return given if given in names else ""
    return names[given + 1] if given + 1 < len(names) else ""
