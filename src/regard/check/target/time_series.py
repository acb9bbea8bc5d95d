"""Arguments of models of time series: measured numbers, what is forecast, and when each of them was."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from regard.check.target.argument import Argument
from regard.check.target.looked_up import function_of, part_of, readers

__all__ = ["TIME_MARKS", "UNREAD", "is_read", "of_a_series", "time_mark_candidates"]

TIME_MARKS = "time marks"
"""The role of the month, day, hour, ... of each time: they are added to its vector, or none are."""
UNREAD = "unread"
"""The role of a sequence that no line reads, as what a decoder would be given by a model that has none."""
_ENCODED, _DECODED = re.compile(r"(?:batch_)?x_enc"), re.compile(r"(?:batch_)?x_dec|dec_inp")
_MARKS = re.compile(r"(?:batch_)?(?:x|y)_mark(?:_enc|_dec)?")
MARKS_OF_A_TIME = (4, 5, 3, 6)
"""How many a time has: of hours, of minutes, of days, of seconds."""


def of_a_series(target: Any, named: list[Argument]) -> list[Argument]:
    """The arguments of a model that takes series beside marks of their times, as x_enc and x_mark_enc.

    A mask beside them says which numbers were measured: it hides no key.
    """
    given = [each for each in named if each.required]
    if not all(any(name.fullmatch(each.name) for each in given) for name in (_ENCODED, _MARKS)):
        return named
    decoded = [each.name for each in given if _DECODED.fullmatch(each.name)]
    asking = [each for each in decoded if is_read(target, each)]

    def role(argument: Argument) -> str | None:
        if _MARKS.fullmatch(argument.name):
            return TIME_MARKS
        if _ENCODED.fullmatch(argument.name):
            return "context" if asking else "x"
        if argument.name in decoded:
            return "x" if argument.name in asking else UNREAD
        return None if argument.role == "mask" and not argument.required else argument.role

    return [replace(each, role=role(each)) for each in named]


def is_read(target: Any, name: str) -> bool:
    """Whether a line does anything with an argument but hand it on to a part that does nothing with it."""
    for module, tree, names in readers(target, name):
        passed = {
            id(value)
            for each in ast.walk(tree)
            if isinstance(each, ast.Call) and function_of(part_of(module, each.func))
            for value in (*each.args, *(one.value for one in each.keywords))
        }
        reads = (each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id in names)
        if any(isinstance(each.ctx, ast.Load) and id(each) not in passed for each in reads):
            return True
    return False


def time_mark_candidates() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """None, or a few numbers of each time: whole ones where tables are looked up."""
    yield "none", lambda draft: None
    for count in MARKS_OF_A_TIME:
        yield f"{count} numbers", partial(_marks, count=count)
    for count in MARKS_OF_A_TIME:
        yield f"{count} ids", partial(_marks, count=count, is_whole=True)


def _marks(draft: Any, count: int, is_whole: bool = False) -> Any:
    shape = (draft.sizes.batch, draft.tokens, count)
    return torch.ones(shape, dtype=torch.long) if is_whole else draft.draw(*shape)
