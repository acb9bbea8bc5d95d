"""A second sequence that code asks for, to choose between two ways, and that neither of these reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import asks_for_none, nodes_of, taken_by
from regard.check.target.names import call_meaning

__all__ = ["asked_context_findings"]

_OF_LABELS = frozenset({"y", "target", "targets", "tgt", "trg"})
"""Names that stand for a context, and for what a model is to return as well."""


def asked_context_findings(target: Any) -> Iterator[Finding]:
    """A context whose only use is the question whether it is there, where both answers make the same of other things.

    As in `if xa is None: k = self.key(x)` and `else: k = self.key(x)`. Code that refuses it makes nothing.

    Args:
        target: a class, a function, or a module.
    """
    for part, text in parts_of(target):
        for function in nodes_of(text, ast.FunctionDef):
            for name in (each.arg for each in taken_by(function)):
                if call_meaning(name) != "context" or name.lower() in _OF_LABELS:
                    continue
                reads = [each for each in ast.walk(function) if isinstance(each, ast.Name) and each.id == name]
                branches = [each for each in ast.walk(function) if isinstance(each, ast.If)]
                asked = [each for each in branches if asks_for_none(each.test, {name}, ast.Is, ast.IsNot)]
                both = next((each for each in asked if _assigned(each.body) & _assigned(each.orelse)), None)
                if both is None or len(reads) != len(asked):
                    continue
                message = f"{name} is asked for and not read: what is computed with it is the same as without it"
                step = PROPERTIES["context-read"].step
                yield Finding("violation", "context-read", step, message, line_in(part, both.lineno))
                return


def _assigned(lines: list[ast.stmt]) -> set[str]:
    """The names that some lines give something to."""
    return {
        ast.unparse(to)
        for line in lines
        for each in ast.walk(line)
        if isinstance(each, ast.Assign)
        for to in each.targets
    }
