"""Sizes that are taken from another argument, or from another layer, than the one that they are of."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import permutations
from typing import Any

from torch import nn

from regard.check.properties.code import line_in
from regard.check.properties.finding import Finding
from regard.check.target.argument import body_of, source_of, tree_of
from regard.check.target.names import call_meaning
from regard.check.target.preparation import modules_in

__all__ = ["size_of_others_findings"]

_LENGTH = re.compile(r"seq|len|time|step|tok|^[tsl]\d?$|_[tsl]$", re.I)
"""Names of lengths, and not of a number of samples, which is the same of all arguments."""


def size_of_others_findings(target: Any) -> Iterator[Finding]:
    """The first size in the text of a module's class that is another one's.

    Args:
        target: what is judged.
    """
    kinds = (type(each) for owner in modules_in(target) for each in owner.modules())
    for kind in dict.fromkeys(each for each in kinds if each.__module__.partition(".")[0] != "torch"):
        call, constructor = vars(kind).get("forward"), vars(kind).get("__init__")
        if not inspect.isfunction(call):
            continue
        found = _other_length(call)
        if found is None and inspect.isfunction(constructor) and issubclass(kind, nn.Module):
            found = _other_width(constructor, call)
        if found is not None:
            yield found
            return


def _other_length(call: Any) -> Finding | None:
    """One tensor that is viewed by the lengths of two arguments in turn: it runs only where these are the same.

    Where both views stand below no condition and differ in nothing else, and nothing compares the lengths.
    """
    body = body_of(source_of(call))
    parameters, nodes = inspect.signature(call).parameters, [each for one in body for each in ast.walk(one)]
    stored = [each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    lengths = dict[str, str]()
    for each in body:
        match each:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(value=ast.Attribute(value=ast.Name(id=argument), attr="shape"))
                | ast.Call(func=ast.Attribute(value=ast.Name(id=argument), attr="size"), args=[_]),
            ) if argument in parameters and stored.count(name) == 1 and _LENGTH.search(name):
                lengths[name] = argument
            case _:
                pass
    comparisons = [each for each in nodes if isinstance(each, ast.Compare)]
    compared = [{one.id for one in ast.walk(each) if isinstance(one, ast.Name)} for each in comparisons]
    views = list[tuple[str, list[str], int]]()
    for statement in body:
        if isinstance(statement, ast.Assign | ast.Expr | ast.Return):
            views += [found for each in ast.walk(statement) if (found := _view(each)) and stored.count(found[0]) == 1]
    for (name, sizes, _), (same, others, number) in permutations(views, 2):
        unlike = [pair for pair in zip(sizes, others, strict=False) if len(set(pair)) > 1]
        if name != same or len(sizes) != len(others) or len(unlike) != 1 or "-1" in sizes:
            continue
        ((mine, other),) = unlike
        are_known = {mine, other} <= lengths.keys() and not any({mine, other} <= each for each in compared)
        if are_known and lengths[mine] != lengths[other]:
            message = (
                f"{name} is viewed by {mine} at one line and by {other} at another, the lengths of {lengths[mine]} and "
                f"of {lengths[other]}: the call fails unless both have the same"
            )
            return Finding("violation", "sizes-of-its-own", "projections", message, line_in(call, number))
    return None


def _other_width(constructor: Any, call: Any) -> Finding | None:
    """A matrix for queries, keys or values that reads as many numbers as another one makes, and not as both others.

    Each makes a width of its own name, and the call hands an argument as it is to the one.
    """
    made = dict[str, tuple[str, str, str, int]]()
    for each in ast.walk(tree_of(source_of(constructor))):
        match each:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                value=ast.Call(func=ast.Attribute(attr="Linear"), args=[ast.Name(id=read), ast.Name(id=width), *_]),
            ) if (role := call_meaning(name)) in ("q", "k", "v"):
                made[str(role)] = (name, read, width, each.lineno)
            case _:
                pass
    if len(made) != 3 or len({width for _, _, width, _ in made.values()}) != 3:
        return None
    text = [ast.unparse(each) for each in ast.walk(tree_of(source_of(call))) if isinstance(each, ast.Call)]
    nodes = [each for one in body_of(source_of(call)) for each in ast.walk(one) if isinstance(each, ast.Name)]
    stored = {each.id for each in nodes if isinstance(each.ctx, ast.Store)}
    given = {*inspect.signature(call).parameters} - stored
    widths = {width for _, _, width, _ in made.values()}
    for first, second, third in permutations(made.values()):
        (name, read, width, number), usual = first, second[1]
        is_of_argument = any(f"self.{name}({each})" in text for each in given)
        if read in widths - {width} and usual == third[1] and usual not in widths and is_of_argument:
            message = (
                f"self.{name} reads vectors of {read} numbers, as many as another matrix makes; self.{second[0]} and "
                f"self.{third[0]} read {usual}"
            )
            return Finding("violation", "sizes-of-its-own", "projections", message, line_in(constructor, number))
    return None


def _view(node: ast.AST) -> tuple[str, list[str], int] | None:
    """The name of a tensor that is viewed, the sizes, and the line of the function; None of anything else."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="view" | "reshape"), args=sizes, keywords=[]):
            return name, [ast.unparse(each) for each in sizes], node.lineno
        case _:
            return None
