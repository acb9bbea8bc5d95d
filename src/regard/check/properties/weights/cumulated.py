"""Weights of all steps so far: what is called their sum is added to, and not replaced by those of the last step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of

__all__ = ["cumulated_findings"]

_SUM = re.compile(r"(?:\w+_)?(?:cum|cumul\w*|accum\w*|coverage)(?:_\w+)?", re.I)
_SOFTMAX = re.compile(r"(?:\b|\.)(?:log_)?softmax\(")


def cumulated_findings(target: Any) -> Iterator[Finding]:
    """A name of a sum that begins as zeros, and in each step of a loop is given the weights of that step alone.

    Location-sensitive attention (Chorowski et al. 2015) and coverage (See et al. 2017) read what all steps before gave
    to each key.

    Args:
        target: a class, a function, or a module.
    """
    for part, text in parts_of(target):
        for loop in nodes_of(text, ast.For):
            inside = [each for one in loop.body for each in ast.walk(one) if isinstance(each, ast.Assign)]
            plain = {ast.unparse(each.targets[0]): each for each in inside if len(each.targets) == 1}
            for name, given in plain.items():
                made = plain.get(ast.unparse(given.value))
                is_of_step = made is not None and _SOFTMAX.search(ast.unparse(made.value)) is not None
                if is_of_step and _SUM.fullmatch(name) and _reads(loop, name) and _begins_as_zeros(text, name, loop):
                    message = (
                        f"{name} is given {ast.unparse(given.value)}, the weights of one step, in each step: by its "
                        "name it is the sum of those of all steps before"
                    )
                    yield Finding("violation", "weights-cumulated", "weights", message, line_in(part, given.lineno))
                    return


def _reads(loop: ast.For, name: str) -> bool:
    """Whether a loop reads a name."""
    names = (each for each in ast.walk(loop) if isinstance(each, ast.Name) and each.id == name)
    return any(isinstance(each.ctx, ast.Load) for each in names)


def _begins_as_zeros(text: str, name: str, loop: ast.For) -> bool:
    """Whether a name is zeros before a loop."""
    before = (each for each in nodes_of(text, ast.Assign) if each.lineno < loop.lineno)
    made = [each for each in before if "zeros" in ast.unparse(each.value)]
    return any(isinstance(one, ast.Name) and one.id == name for each in made for one in ast.walk(each.targets[0]))
