"""Methods of a module that hold an attention of their own and that a call of the module does not reach."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from regard.check.properties.code import line_in
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of, source_of

__all__ = ["uncalled_method_findings"]

ATTENDS = re.compile(r"softmax\(|scaled_dot_product_attention\(")
_TAKES_SIZES = frozenset({"view", "reshape", "expand"})
"""Methods of tensors that raise where a size is a float."""


def uncalled_method_findings(target: Any) -> Iterator[Finding]:
    """Says which methods were not judged, such as a decoder's step beside its call for a whole sequence.

    And which cannot run, as they ask for axes of a size that is a quotient: a float.
    """
    if not isinstance(target, nn.Module):
        return
    whole = source_of(target)
    for name, method in vars(type(target)).items():
        name = name.removeprefix(f"_{type(target).__name__.lstrip('_')}") if "__" in name.lstrip("_") else name
        is_own = inspect.isfunction(method) and name not in ("forward", "__call__")
        if not is_own or not ATTENDS.search(source_of(method)) or re.search(rf"\.{name}\b", whole):
            continue  # an attribute that is read is called, or handed on
        message = f"{name}() is not judged: a call of the module does not reach it"
        yield Finding("note", "uncalled-method", "scores", message)
        yield from _of_quotients(name, method)


def _of_quotients(name: str, method: Callable[..., Any]) -> Iterator[Finding]:
    """The first line of a method that asks for an axis of a size which is a quotient."""
    source = source_of(method)
    known = _assigned_once(source)
    for call in nodes_of(source, ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _TAKES_SIZES:
            continue
        of = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
        if of == "self" or inspect.ismodule(method.__globals__.get(of)):
            continue  # a method of its own, or a function that takes the tensor itself
        sizes = [one for each in call.args for one in getattr(each, "elts", [each])]
        for size in sizes if len(sizes) > 1 else ():
            quotient = known.get(size.id) if isinstance(size, ast.Name) else size
            if isinstance(quotient, ast.BinOp) and isinstance(quotient.op, ast.Div):
                message = (
                    f"{name}() raises whatever it is given: {ast.unparse(quotient)} is a float, and {call.func.attr}() "
                    "takes whole numbers"
                )
                yield Finding("violation", "whole-sizes", "call", message, line_in(method, call.lineno))
                return


def _assigned_once(source: str) -> dict[str, ast.expr]:
    """What the names of a method stand for that it assigns once."""
    stored = [each.id for each in nodes_of(source, ast.Name) if isinstance(each.ctx, ast.Store)]
    stored += [each.arg for each in nodes_of(source, ast.arg)]
    return {
        each.targets[0].id: each.value
        for each in nodes_of(source, ast.Assign)
        if isinstance(each.targets[0], ast.Name) and stored.count(each.targets[0].id) == 1
    }
