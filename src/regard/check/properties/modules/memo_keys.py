"""The keys by which functions remember what they made, read in the code: all that it is made of is in them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.profiled import profiled
from regard.check.target import Invocation
from regard.check.target.argument import taken_by
from regard.check.target.errors import Failed
from regard.check.target.preparation import modules_in

__all__ = ["memo_key_findings"]

OF_ANY_VALUE = frozenset(
    {"device", "dtype", "shape", "size", "ndim", "dim", "is_cuda", "requires_grad", "layout", "type", "new_tensor"}
)
"""What a tensor is asked for that its numbers do not change, or its key tells."""
LIKE = frozenset({"to", "type_as", "expand_as", "view_as"})
"""Methods that are told the type of another tensor."""


@dataclass(frozen=True)
class _Memo:
    """A function that keeps what it makes."""

    name: str
    first_line: int
    line: int
    """Where something is kept."""
    key: ast.expr
    table: ast.expr
    left_out: tuple[str, ...]
    """Arguments, and attributes as self.base, that it is made of, and that are not in the key."""


def memo_key_findings(invocation: Invocation) -> Iterator[Finding]:
    """A function that is called with other arguments in one run, and returns what it kept of those before.

    Args:
        invocation: a call; of each function of its file that keeps what it makes, the calls in it are looked at.
    """
    owner = modules_in(invocation.target)[:1] or [invocation.target]
    file = sys.modules.get(getattr(type(owner[0]), "__module__", "")) or inspect.getmodule(owner[0])
    try:
        path, text = inspect.getsourcefile(file) if file is not None else None, inspect.getsource(file) if file else ""
        memos = list(_memos(ast.parse(text)))
    except (OSError, TypeError, SyntaxError):
        return
    if not memos or path is None:
        return
    known: dict[tuple[_Memo, int, Any], Mapping[str, Any]] = {}
    found: list[tuple[_Memo, str, Any, Any]] = []

    def looked_at(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "return" or code.co_filename != file.__file__:  # type: ignore[union-attr]
            return
        for memo in memos:
            if (code.co_name, code.co_firstlineno) != (memo.name, memo.first_line):
                continue
            try:
                key, table = (
                    eval(compile(ast.Expression(each), path, "eval"), frame.f_globals, dict(frame.f_locals))
                    for each in (memo.key, memo.table)
                )
                given = {name: _value(frame, name) for name in memo.left_out}
                before = known.setdefault((memo, id(table), key), given)
            except Exception:  # code of others may have keys of any kind
                continue
            found.extend(
                (memo, name, before[name], given[name]) for name in given if _differ(before[name], given[name])
            )

    try:
        invocation.run(watch=lambda _: profiled(looked_at))
    except Failed:
        return
    for memo, name, one, other in found[:1]:
        told = "" if isinstance(one, Tensor) else f", of {one!r} and then of {other!r}"
        message = (
            f"{memo.name}() keeps what it makes by {ast.unparse(memo.key)}, and not by {name}, of which it is made: "
            f"asked for another one{told}, it returns the first"
        )
        line = CodeLocation(path, memo.line, text.splitlines()[memo.line - 1].strip())
        yield Finding("violation", "remembered-by-all", "call", message, line)


def _memos(tree: ast.AST) -> Iterator[_Memo]:
    """The functions in which something is made where a key is not in a table, and put there."""
    for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
        arguments = [each.arg for each in taken_by(function)]
        told = {
            each.targets[0].id: each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
        }
        for each in (one for one in ast.walk(function) if isinstance(one, ast.If)):
            test = each.test
            if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.NotIn):
                continue
            table, key = test.comparators[0], test.left
            kept = [
                one
                for one in ast.walk(each)
                if isinstance(one, ast.Assign)
                and isinstance(one.targets[0], ast.Subscript)
                and ast.dump(one.targets[0].value) == ast.dump(table)
                and ast.dump(one.targets[0].slice) == ast.dump(key)
            ]
            if not kept or (isinstance(table, ast.Name) and table.id in told):
                continue
            in_key, used = _names(key, told), set[str]().union(*(_values_read(one, told) for one in each.body))
            left_out = tuple(
                one
                for one in (*arguments, *sorted(each for each in used if "." in each))
                if one in used - in_key and one not in ("self", "cls")
            )
            if left_out:
                start = function.decorator_list[0].lineno if function.decorator_list else function.lineno
                yield _Memo(function.name, start, kept[0].lineno, key, table, left_out)


def _names(node: ast.AST, told: Mapping[str, ast.expr], depth: int = 4) -> set[str]:
    """The names in an expression, and in those that its names were told to be."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | _own(node, set())
    if depth:
        for name in found & {*told}:
            found = found | _names(told[name], told, depth - 1)
    return found


def _values_read(node: ast.AST, told: Mapping[str, ast.expr], depth: int = 4) -> set[str]:
    """The names whose values a statement takes, and not their type, their place or their shape alone."""
    beside: set[int] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and (each.attr in OF_ANY_VALUE or each.attr.startswith("new_")):
            beside |= {id(one) for one in ast.walk(each.value)}
        elif isinstance(each, ast.Call):
            called = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
            if called in LIKE or called.endswith("_like"):
                beside |= {id(one) for argument in each.args for one in ast.walk(argument)}
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and id(each) not in beside}
    found |= _own(node, beside)
    if depth:
        for name in found & {*told}:
            found = found | _values_read(told[name], told, depth - 1)
    return found


def _own(node: ast.AST, beside: set[int]) -> set[str]:
    """The attributes of self in an expression, as self.base."""
    return {
        f"self.{each.attr}"
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
        and id(each) not in beside
    }


def _value(frame: FrameType, name: str) -> Any:
    """Of an argument, or of an attribute of self."""
    first, _, attribute = name.partition(".")
    return getattr(frame.f_locals[first], attribute) if attribute else frame.f_locals[first]


def _differ(one: Any, other: Any) -> bool:
    """Whether two values are known to be others."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape != other.shape or not torch.equal(one, other)
    plain = (bool, int, float, str, type(None))
    return isinstance(one, plain) and isinstance(other, plain) and one != other
