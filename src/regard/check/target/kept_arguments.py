"""An argument under the names that an object keeps it by: what it is compared with, and whether it is a flag."""

from __future__ import annotations

import ast
import re
from functools import cache

from regard.check.target.argument import nodes_of

__all__ = ["any_name", "attributes_of", "compared_with", "is_tested", "is_this"]

COPIES = ("deepcopy", "copy")
"""Functions whose result is what they are given."""


def compared_with(source: str, name: str) -> list[str]:
    """The texts that an argument or a field of a config is compared with, in their order: it is one of them."""
    kept, found = attributes_of(source, name), list[str]()
    for each in nodes_of(source, ast.Compare):
        if any(_has_it(side, name, kept) for side in (each.left, *each.comparators)):
            sides = [side for both in (each.left, *each.comparators) for side in getattr(both, "elts", [both])]
            found += [side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)]
    return list(dict.fromkeys(found))


def is_tested(source: str, name: str) -> bool:
    """Whether something is done or not by an argument, or by a field of a config, alone: it is a flag."""
    kept = attributes_of(source, name)
    for each in nodes_of(source):
        tests = [each.test] if isinstance(each, ast.If | ast.IfExp) else []
        tests += each.values if isinstance(each, ast.BoolOp) else []
        tests += [each.operand] if isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not) else []
        if any(_has_it(test, name, kept) for test in tests):
            return True
    return False


def any_name(source: str, name: str) -> str:
    """A pattern of the argument, and of the attributes that keep it."""
    kept = {f"self.{each}" for each in attributes_of(source, name)}
    return f"(?:{'|'.join(re.escape(each) for each in (name, *sorted(kept)))})"


@cache
def attributes_of(source: str, name: str) -> frozenset[str]:
    """The attributes that are set to it, alone or as one of several, or to a copy of it."""
    found = set[str]()
    for each in nodes_of(source, ast.Assign):
        for target in each.targets:
            several = isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple)
            pairs = zip(target.elts, each.value.elts, strict=False) if several else [(target, each.value)]
            found |= {to.attr for to, value in pairs if isinstance(to, ast.Attribute) and is_this(value, name)}
    return frozenset(found)


def _has_it(value: ast.expr, name: str, kept: frozenset[str]) -> bool:
    """Whether an expression is an argument, a field of a config, or an attribute that keeps it."""
    of_self = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self"
    return value.attr in kept if of_self else is_this(value, name)  # type: ignore[attr-defined]


def is_this(value: ast.expr, name: str) -> bool:
    """Whether an expression is a name, a field of another object by this name, or a copy of what it names."""
    if isinstance(value, ast.Attribute):
        return value.attr == name and not (isinstance(value.value, ast.Name) and value.value.id == "self")
    if isinstance(value, ast.Subscript):
        return isinstance(value.slice, ast.Constant) and value.slice.value == name
    if isinstance(value, ast.Call) and len(value.args) == 1:
        copies = getattr(value.func, "attr", getattr(value.func, "id", ""))
        return copies in COPIES and is_this(value.args[0], name)
    return isinstance(value, ast.Name) and value.id == name
