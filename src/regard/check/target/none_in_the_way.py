"""What a call that failed lacked: arguments that were None, and those that a function inside of it has to be given."""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import re
import textwrap
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Any

from torch import nn

__all__ = ["lacking_inside", "none_in_the_way"]

_LACKING = re.compile(r"\w\(\) missing \d+ required (?:positional|keyword-only) arguments?: (?P<names>.+)")


def none_in_the_way(error: BaseException | None, target: Any, names: Collection[str]) -> list[str]:
    """The arguments of a call that were None and that the statement of it names which failed.

    Args:
        error: what the call raised.
        target: what was called.
        names: of its arguments.
    """
    code = getattr(_call_of(target), "__code__", None)
    trace = None if error is None else error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            values = trace.tb_frame.f_locals
            return [each for each in _names_at(trace) if each in names and values.get(each, 0) is None]
        trace = trace.tb_next
    return []


def lacking_inside(error: BaseException | None, target: Any, names: Collection[str]) -> list[str]:
    """The arguments that a function inside of a call has to be given, where the call hands on whatever it is given.

    As of forward(self, x, **kwargs) that calls attend(q, k, v, **kwargs), which takes a mask.

    Args:
        error: what the call raised.
        target: what was called.
        names: of the arguments that it takes itself.
    """
    lacking = _LACKING.search(str(error)) if isinstance(error, TypeError) else None
    if lacking is None:
        return []
    try:
        parameters = inspect.signature(_call_of(target)).parameters.values()
    except (ValueError, TypeError):
        return []
    several = [each for each in re.findall(r"'(\w+)'", lacking["names"]) if each not in names]
    return several if any(each.kind is each.VAR_KEYWORD for each in parameters) else []


def _call_of(target: Any) -> Callable[..., Any]:
    """The function that a call of a target runs."""
    call: Any = type(target).forward if isinstance(target, nn.Module) else target
    found: Callable[..., Any] = getattr(call, "__func__", call)
    return found


def _names_at(trace: TracebackType) -> Iterator[str]:
    """The names that are read in the expression at which a frame stopped, in their order."""
    code = trace.tb_frame.f_code
    first, last, start, end = next(itertools.islice(code.co_positions(), trace.tb_lasti // 2, None))
    if first is None or last is None or start is None or end is None:
        return
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    lines[-1] = lines[-1].encode()[:end].decode(errors="ignore")
    lines[0] = lines[0].encode()[start:].decode(errors="ignore")
    try:
        tree = ast.parse(textwrap.dedent(f"({''.join(lines)})"))
    except SyntaxError:
        return
    yield from dict.fromkeys(each.id for each in ast.walk(tree) if isinstance(each, ast.Name))
