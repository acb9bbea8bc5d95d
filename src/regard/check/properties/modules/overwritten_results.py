"""What a layer returns, whose name is given something else before any line reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of

__all__ = ["overwritten_result_findings"]


def overwritten_result_findings(target: Any) -> Iterator[Finding]:
    """A layer whose result is thrown away, as skip = self.skip(x), and then skip = self.norm(x).

    A method of the code's own may be called for what it does; of a layer of a module the result is all there is.
    Dropout that nothing reads is told by `lost_dropouts`.

    Args:
        target: a class, a function, or a module.
    """
    for part, text in parts_of(target):
        methods = {each.name for each in nodes_of(text, ast.FunctionDef)}
        for block in _blocks(text):
            for place, line in enumerate(block):
                name, layer = _result_of_a_layer(line)
                is_layer = layer and layer not in methods and "drop" not in layer.lower()
                if is_layer and _is_overwritten(block[place + 1 :], name):
                    message = (
                        f"{name} is what self.{layer} returns, and is given something else before any line reads it"
                    )
                    yield Finding("violation", "results-read", "call", message, line_in(part, line.lineno))
                    return


def _blocks(text: str) -> Iterator[list[ast.stmt]]:
    """The lines that run one after the other."""
    for each in nodes_of(text):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(each, field, None)
            if isinstance(block, list):
                yield block


def _result_of_a_layer(line: ast.stmt) -> tuple[str, str]:
    """The name that a line gives to what self.LAYER(...) returns, and that of the layer; empty of all other lines."""
    if not (isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.value, ast.Call)):
        return "", ""
    to, function = line.targets[0], line.value.func
    is_of_self = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self"
    if not (isinstance(to, ast.Name) and isinstance(function, ast.Attribute) and is_of_self) or to.id.startswith("_"):
        return "", ""
    return to.id, function.attr


def _is_overwritten(lines: list[ast.stmt], name: str) -> bool:
    """Whether the first of some lines that has a name gives it something else, without reading it."""
    for line in lines:
        names = [each for each in ast.walk(line) if isinstance(each, ast.Name) and each.id == name]
        if names:
            gives = isinstance(line, ast.Assign) and any(each is to for each in names for to in line.targets)
            return gives and not any(isinstance(each.ctx, ast.Load) for each in names)
    return False
