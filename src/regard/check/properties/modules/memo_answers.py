"""Functions that remember masks or tables, asked twice with other numbers: the second answer is its own."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.code import code_of, line_of
from regard.check.properties.finding import Finding
from regard.check.properties.profiled import profiled
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["memo_answer_findings"]

_OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that PyTorch gives every module."""


def memo_answer_findings(invocation: Invocation) -> Iterator[Finding]:
    """A function of numbers that returns what it remembered of a call with other numbers.

    As a mask that is kept by the number of keys, and was made for another number of queries. What is remembered of a
    larger size may hold that of a smaller one: who calls it takes a part.

    Args:
        invocation: a call of a module or of a function.
    """
    live = copied(invocation.target) if isinstance(invocation.target, nn.Module) else invocation.target
    seen: dict[CodeType, tuple[Any, dict[str, Any]]] = {}
    try:
        with _noted(_file_of(invocation.target), seen):
            invocation.run(target=live)
    except Failed:
        return
    functions = {each.__code__: each for each in _functions_of_file(invocation.target)}
    for code, (owner, given) in seen.items():
        function = functions.get(code) if owner is None else _method(owner, code)
        memos = [] if function is None else _memos(function)
        if function is None or not memos or not _is_of_numbers(given):
            continue
        for name, other in _others(given):
            if (found := _judged(function, memos, given, {**given, name: other}, name)) is not None:
                yield found
                return


def _judged(
    function: Callable[..., Any], memos: list[dict[Any, Any]], given: dict[str, Any], other: dict[str, Any], name: str
) -> Finding | None:
    """What is found where two calls that differ in one argument come one after the other."""
    kept = [dict(each) for each in memos]
    try:
        for first, second in ((other, given), (given, other)):
            _clear(memos)
            random = function(*second.values())
            _clear(memos)
            alone = function(*second.values())
            if not isinstance(alone, Tensor) or not torch.equal(random, alone):
                return None
            _clear(memos)
            function(*first.values())
            after = function(*second.values())
            if isinstance(after, Tensor) and not _holds(after, alone):
                called = getattr(function, "__name__", "it")
                message = (
                    f"{called}() with {name}={second[name]} returns what it remembered of {name}={first[name]}: "
                    f"{_text(after)} for {_text(alone)}"
                )
                return Finding("violation", "remembered-by-all", "call", message, line_of(function))
    except Exception:  # with other numbers it may raise anything
        return None
    finally:
        for memo, before in zip(memos, kept, strict=True):
            memo.clear()
            memo.update(before)
    return None


def _text(result: Tensor) -> str:
    return f"a tensor of shape {tuple(result.shape)}"


def _clear(memos: list[dict[Any, Any]]) -> None:
    for each in memos:
        each.clear()


def _holds(after: Tensor, alone: Tensor) -> bool:
    """Whether a tensor is another one, or holds it at its beginning."""
    if after.ndim != alone.ndim or any(a < b for a, b in zip(after.shape, alone.shape, strict=True)):
        return False
    return torch.equal(after[tuple(slice(each) for each in alone.shape)], alone)


def _others(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each number less one, where it is larger, and one; each flag the other way round."""
    for name, value in given.items():
        if isinstance(value, bool):
            yield name, not value
        elif isinstance(value, int):
            yield from ((name, each) for each in dict.fromkeys((1, value - 1)) if 0 < each < value)


def _is_of_numbers(given: dict[str, Any]) -> bool:
    """Whether a function is told sizes and flags, and what kind of tensor is wanted, and nothing else."""
    plain = (int, bool, str, type(None), torch.device, torch.dtype)
    return all(isinstance(each, plain) for each in given.values()) and any(type(each) is int for each in given.values())


def _memos(function: Callable[..., Any]) -> list[dict[Any, Any]]:
    """The dicts that a function reads beside its arguments: around it, in its file, or in the object it belongs to."""
    owner, function = getattr(function, "__self__", None), getattr(function, "__func__", function)
    cells = [each.cell_contents for each in getattr(function, "__closure__", None) or () if _is_full(each)]
    names = function.__globals__ if owner is None else vars(owner)
    read = [names.get(each) for each in function.__code__.co_names if each not in _OF_MODULES]
    return [each for each in (*cells, *read) if type(each) is dict]


def _method(owner: Any, code: CodeType) -> Callable[..., Any] | None:
    """The method of an object that has some code."""
    method = getattr(owner, code.co_name, None)
    is_own = inspect.ismethod(method) and method.__func__.__code__ is code
    return method if is_own and isinstance(owner, nn.Module) else None


def _is_full(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _functions_of_file(target: Any) -> Iterator[Any]:
    """The functions of its file that a target names, and static ones of its class."""
    code = code_of(target)
    kind = type(target) if isinstance(target, nn.Module) else target
    file = sys.modules.get(getattr(kind, "__module__", ""))
    for name, value in (*vars(file or object).items(), *vars(type(target)).items()):
        value = getattr(value, "__func__", value)
        if inspect.isfunction(value) and re.search(rf"\b{re.escape(name)}\b", code):
            yield value


def _file_of(target: Any) -> str:
    try:
        return inspect.getsourcefile(type(target) if isinstance(target, nn.Module) else target) or ""
    except TypeError:
        return ""


def _noted(file: str, seen: dict[CodeType, tuple[Any, dict[str, Any]]]) -> AbstractContextManager[None]:
    """Inside, the first arguments of each function of a file are noted."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename == file and code not in seen:
            names = code.co_varnames[: code.co_argcount]
            given = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
            seen[code] = given.pop("self", None), given

    return profiled(note)
