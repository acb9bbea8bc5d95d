"""Masks of several kinds, of which a setting of the module chooses the one that is read."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.signature import source_of

__all__ = ["not_chosen"]


def not_chosen(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect is read on one side of a question alone, and another mask on the other; else None.

    The question is one of the module's settings, as in `mask = local if self.kind == "local" else whole`.

    Args:
        invocation: the call.
        name: of its mask.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return None
    try:
        tree = ast.parse(textwrap.dedent(source_of(type(target).forward)))
    except SyntaxError:
        return None
    reads = {id(each) for each in _names([tree]) if each.id == name}
    for each in ast.walk(tree):
        if not isinstance(each, ast.If | ast.IfExp) or not _is_of_a_setting(each.test):
            continue
        sides = [side if isinstance(side, list) else [side] for side in (each.body, each.orelse)]
        for mine, other in (sides, sides[::-1]):
            others = {one.id for one in _names(other)} & set(invocation.masks) - {name}
            if others and reads and reads <= {id(one) for one in _names(mine)}:
                asked = ast.unparse(each.test)
                message = f"{name} is not read: {asked} chooses {', '.join(sorted(others))}; {name} was not exercised"
                return Finding("open", "mask-open", "mask", message)
    return None


def _names(parts: Iterable[ast.AST]) -> Iterator[ast.Name]:
    """The names that are read."""
    for part in parts:
        for each in ast.walk(part):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                yield each


def _is_of_a_setting(test: ast.expr) -> bool:
    """Whether a condition reads nothing but attributes of the module."""
    names = {each.id for each in _names([test])}
    return names == {"self"} and not any(isinstance(each, ast.Call) for each in ast.walk(test))
