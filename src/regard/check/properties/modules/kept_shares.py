"""Dropout that is told which share to keep, by the name of what it is told: PyTorch's takes the share that it drops."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of

__all__ = ["kept_share_findings"]

_KEPT = re.compile(r"(?:\w+_)?(?:keep|kept|retain|retained|survival)(?:_?(?:p|rate|ratio|share|prob\w*))?", re.I)
_LAYER = re.compile(r"(?:torch\.)?nn\.(?:Alpha|FeatureAlpha)?Dropout(?:[123]d)?")
_FUNCTION = re.compile(r"(?:F|nn\.functional|torch\.nn\.functional)\.(?:alpha_)?dropout(?:[123]d)?_?|torch\.dropout_?")


HALF = 0.5


def kept_share_findings(target: Any) -> Iterator[Finding]:
    """A share that is called one to keep, and that PyTorch's dropout is given as it is.

    Where the code gives the name another number, as keep = 1 - drop before, it is not known which share it is. One
    that is less than half by default is the share to drop, by a name that misleads.

    Args:
        target: a class, a function, or a module.
    """
    for part, text in parts_of(target):
        for call in nodes_of(text, ast.Call):
            given = _share_of(call)
            if given is None:
                continue
            name = ast.unparse(given)
            if _KEPT.fullmatch(name.rpartition(".")[2]) and not (_is_set(text, name) or _is_small(text, name)):
                message = (
                    f"{ast.unparse(call.func)} is told {name}, by its name the share that is kept: it drops that share"
                )
                yield Finding("violation", "dropout-handed-on", "call", message, line_in(part, call.lineno))
                return


def _share_of(call: ast.Call) -> ast.expr | None:
    """What PyTorch's dropout is told to drop, as a layer or as a function; None of any other call."""
    function = ast.unparse(call.func)
    place = 0 if _LAYER.fullmatch(function) else 1 if _FUNCTION.fullmatch(function) else None
    if place is None:
        return None
    named = [each.value for each in call.keywords if each.arg == "p"]
    given = [*named, *call.args[place : place + 1]]
    return given[0] if given and isinstance(given[0], ast.Name | ast.Attribute) else None


def _is_set(text: str, name: str) -> bool:
    """Whether the code gives a name a number that is more than an argument of the same name."""
    for each in nodes_of(text, ast.Assign):
        if any(ast.unparse(to) == name for to in each.targets):
            return ast.unparse(each.value).rpartition(".")[2] != name.rpartition(".")[2]
    return False


def _is_small(text: str, name: str) -> bool:
    """Whether a function has an argument of a name, and less than half by default."""
    for function in nodes_of(text, ast.FunctionDef):
        several = [*function.args.posonlyargs, *function.args.args]
        behind = several[len(several) - len(function.args.defaults) :]
        defaults = [*zip(behind, function.args.defaults, strict=True)]
        defaults += [*zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]
        for argument, default in defaults:
            value = default.value if isinstance(default, ast.Constant) else None
            if argument.arg == name.rpartition(".")[2] and isinstance(value, int | float) and value < HALF:
                return True
    return False
