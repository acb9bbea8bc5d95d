"""Attributes of a class: which are written, and which a line of its file, or of its bases', reads."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from regard.check.target.argument import text_of
from regard.check.target.argument import tree_of as parsed
from regard.check.target.classes import own_classes

__all__ = ["SCALE_NAME", "is_one_of_steps", "is_read_by_settings", "is_unread", "tree_of"]

SCALE_NAME = re.compile(r"_?(?:softmax_|attn_|attention_|qk_)?(?:scale|scaling|temperature)|(?:inv_)?norm_factor", re.I)
"""The name of what scores are multiplied by, or divided by."""
REGISTERED = ("register_parameter", "register_buffer", "add_module")
"""What makes an attribute of the name that it is given first."""

_ALL_NAMES = frozenset({"locals", "vars", "eval", "exec"})
"""What may read any name."""
LIBRARIES = frozenset({"F", "functional", "nn", "np", "torch"})
"""What has functions and classes for attributes, as F.dropout: these are of no object."""


def is_unread(kind: type, name: str) -> bool:
    """Whether the class writes an attribute by its name, and no line of its file, or of its bases', reads it."""
    kinds = own_classes(kind)
    files = {each.__module__: sys.modules.get(each.__module__) for each in kinds}
    is_written = False
    for file in files.values():
        tree = None if file is None else tree_of(file)
        if tree is None:
            return False
        own = {each.__name__ for each in kinds if each.__module__ == getattr(file, "__name__", "")}
        for part in tree.body:
            is_own = not isinstance(part, ast.ClassDef) or part.name in own  # elsewhere `self` is another object
            written, read = _attributes(part, is_own)
            if name in read:
                return False
            is_written |= is_own and name in written
    return is_written


@cache
def is_read_by_settings(kind: type, name: str) -> bool:
    """Whether each line beside its constructor that reads an attribute stands below a condition on another attribute.

    As the projection of a residual in ``if self.residual:``, which a constructor made all the same.
    """
    reads = [below for each in own_classes(kind) for below in _conditions_of_reads(text_of(each), name)]
    return bool(reads) and all(reads)


def _conditions_of_reads(text: str, name: str) -> Iterator[bool]:
    """For each read of ``self.NAME``, whether it stands in the body of an ``if`` that asks for an attribute alone."""

    def walk(node: ast.AST, is_below: bool) -> Iterator[bool]:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
            yield is_below
        for field, value in ast.iter_fields(node):
            is_body = isinstance(node, ast.If) and field == "body" and _is_setting(node.test)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from walk(each, is_below or is_body)

    yield from walk(parsed(text), False)


@cache
def is_one_of_steps(kind: type, name: str) -> bool:
    """Whether one member of a list is called at a time, by a number that no loop counts, as ``self.NAME[step](x)``.

    As the layer of each step of a reasoning, of which a call takes one (MAC, arXiv:1803.03067).
    """
    found = list[bool]()
    for each in own_classes(kind):
        counted = {
            one.id
            for node in ast.walk(parsed(text_of(each)))
            if isinstance(node, ast.For | ast.comprehension | ast.AugAssign)
            for one in ast.walk(node.target)
            if isinstance(one, ast.Name)
        }
        for node in ast.walk(parsed(text_of(each))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Subscript):
                continue
            if ast.unparse(node.func.value) == f"self.{name}":
                number = [one.id for one in ast.walk(node.func.slice) if isinstance(one, ast.Name)]
                found.append(bool(number) and not counted & {*number})
    return bool(found) and all(found)


def _is_setting(test: ast.expr) -> bool:
    """Whether a condition is an attribute of `self` other than the mode, as in ``if self.residual:``."""
    return ast.unparse(test).startswith("self.") and isinstance(test, ast.Attribute) and test.attr != "training"


@cache
def tree_of(file: ModuleType) -> ast.Module | None:
    """The syntax tree of a file; None where its text is not known."""
    try:
        return ast.parse(inspect.getsource(file))
    except (OSError, TypeError, SyntaxError):
        return None


@cache
def _attributes(part: ast.stmt, is_own: bool) -> tuple[frozenset[str], frozenset[str]]:
    """The names of attributes that are written, and of those that are read, in a class or another part of a file.

    Not by a condition alone, nor where their numbers are set while they are constructed, nor where they are only moved
    to another device or type, and kept in their own place, or under a name that nothing reads.
    """
    written, read = set[str](), set[str]()
    ignored = {id(each) for one in _only_moved(part) for each in ast.walk(one)}
    for node in ast.walk(part):
        if isinstance(node, ast.If | ast.IfExp):
            ignored.update(map(id, ast.walk(node.test)))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in REGISTERED:
            written.update(
                each.value for each in node.args[:1] if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
            ignored.update(map(id, node.args[:1]))
        elif isinstance(node, ast.FunctionDef) and re.search("init|reset", node.name):
            ignored.update(id(each) for one in ast.walk(node) for each in _setting(one))
    for node in ast.walk(part):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            written.add(node.attr)
        elif id(node) in ignored:
            continue
        elif isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            read.update([node.attr] if (is_own or not is_self) and not _is_of_a_library(node) else [])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            read.add(node.value)
    return frozenset(written), frozenset(read)


def _is_of_a_library(node: ast.expr) -> bool:
    """Whether it is what a library has by a name, as torch.nn.functional.dropout."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in LIBRARIES


def _only_moved(part: ast.stmt) -> Iterator[ast.expr]:
    """Attributes where they are read to be put in their own place, or under a name that nothing reads."""
    inner = set[int]()  # what a function within another keeps, the other one may read
    for function in ast.walk(part):
        if not isinstance(function, ast.FunctionDef) or id(function) in inner:
            continue
        inner |= {id(each) for each in ast.walk(function)}
        names = {
            each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
        }
        for each in ast.walk(function):
            if not isinstance(each, ast.Assign) or len(each.targets) != 1:
                continue
            target, value = each.targets[0], _moved(each.value)
            is_own = (
                isinstance(target, ast.Attribute) and value is not None and ast.unparse(value) == ast.unparse(target)
            )
            is_lost = isinstance(target, ast.Name) and target.id not in names | {"_"} and not names & _ALL_NAMES
            if value is not None and (is_own or is_lost):
                yield value


def _moved(value: ast.expr) -> ast.expr | None:
    """The attribute that an expression is but for its device, its type and its shape, if there is one; else None."""
    if isinstance(value, ast.IfExp):
        return _moved(value.body) or _moved(value.orelse)
    if _is_of_self(value):
        return value
    if isinstance(value, ast.Call):  # a method of what it is; one of the object itself may do anything
        return None if _is_of_self(value.func) else _moved(value.func)
    return _moved(value.value) if isinstance(value, ast.Attribute | ast.Subscript) else None


def _is_of_self(node: ast.expr) -> bool:
    """Whether it is an attribute of the object itself."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _setting(statement: ast.AST) -> Iterator[ast.AST]:
    """What a statement of a constructor names only to set its numbers."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from (each for each in ast.walk(statement) if not isinstance(each, ast.Lambda))
    elif isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (each for target in targets for each in ast.walk(target))
