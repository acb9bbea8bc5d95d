"""Settings that a constructor takes, and that it sets to True or False itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of, taken_by

__all__ = ["constant_setting_findings"]

_READS_ALL = frozenset({"locals", "vars", "eval", "exec"})


def constant_setting_findings(target: Any) -> Iterator[Finding]:
    """An argument of a constructor that no line of it reads, where the attribute of its name is given True or False.

    As `self.is_causal = False` below `def __init__(self, is_causal=False)`: whatever is asked for, it is not so.

    Args:
        target: a class, a function, or a module.
    """
    for part, text in parts_of(target):
        for function in nodes_of(text, ast.FunctionDef):
            if function.name != "__init__":
                continue
            given = {each.arg for each in taken_by(function)}
            names = (each for each in ast.walk(function) if isinstance(each, ast.Name))
            read = {each.id for each in names if isinstance(each.ctx, ast.Load)}
            for each in ast.walk(function) if not read & _READS_ALL else ():
                if not (isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)):
                    continue
                kept = {ast.unparse(to).removeprefix("self.") for to in each.targets if isinstance(to, ast.Attribute)}
                unread = sorted(kept & given - read)
                if unread and isinstance(each.value.value, bool):
                    message = (
                        f"self.{unread[0]} is {each.value.value} whatever {unread[0]} is: no line reads the argument"
                    )
                    yield Finding("violation", "settings-read", "call", message, line_in(part, each.lineno))
                    return
