"""The text of what is judged, and the numbers in it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torch import nn

from regard.check.location import CodeLocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of, text_of
from regard.check.target.preparation import modules_in

__all__ = [
    "code_of",
    "comments_of_file",
    "documentation_of_file",
    "documentation_of_functions",
    "is_commented_out",
    "line_in",
    "line_of",
    "numbers_in",
    "parts_of",
    "sentences_of",
]

_NAME = re.compile(r"\b[A-Za-z_]\w*")
_NUMBER = re.compile(r"(?<![\w.])\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?", re.I)
_BEGINS = re.compile(r"\s*(?:async )?def ")
MOST = 40
"""Functions and classes whose texts are read."""


def code_of(target: Any) -> str:
    """The text of a target, of the classes of its modules, and of what it uses of the functions of its file."""
    return "\n\n".join(text for _, text in parts_of(target))


def documentation_of_functions(target: Any) -> str:
    """The documentation of the functions of its file that a target uses, as of one that makes its mask."""
    functions = [each for each, _ in parts_of(target) if inspect.isfunction(each)]
    return "\n\n".join(inspect.cleandoc(each.__doc__) for each in functions if each.__doc__)


def documentation_of_file(target: Any) -> str:
    """The first words of the file that a class or a function stands in; none of PyTorch's own."""
    kind = type(target).forward if isinstance(target, nn.Module) else target
    names = getattr(kind, "__globals__", {})
    is_library = str(names.get("__name__", "")).startswith("torch.")
    return "" if is_library else inspect.cleandoc(names.get("__doc__") or "")


def comments_of_file(target: Any) -> str:
    """The lines of comment before the first function or class of the file of a target; none of PyTorch's own."""
    kind = type(target) if isinstance(target, nn.Module) else target
    file = inspect.getmodule(kind)
    if file is None or file.__name__.startswith("torch."):
        return ""
    try:
        text = inspect.getsource(file)
    except (OSError, TypeError):
        return ""
    before = re.split(r"^(?:@|class |def |async def )", text, maxsplit=1, flags=re.M)[0]
    return "\n".join(line.lstrip("#").strip() for line in before.splitlines() if line.startswith("#"))


def line_of(function: Callable[..., Any]) -> CodeLocation | None:
    """The line of a function or a method that gives its name, behind its decorators; None where it has no text."""
    function = inspect.unwrap(function)
    lines = text_of(function).splitlines()
    return line_in(function, next((at for at, each in enumerate(lines, 1) if _BEGINS.match(each)), 1))


def line_in(part: Any, number: int) -> CodeLocation | None:
    """A line of the text of a function or a class, or a module's, counted from 1; None where it has no such line."""
    kind = _kind_of(part)
    try:
        file, (lines, first) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    if file is None or not 0 < number <= len(lines):
        return None
    return CodeLocation(file, first + number - 1, lines[number - 1].strip())


def sentences_of(text: str, ends: str = ".;") -> list[str]:
    """The sentences of a documentation, each in one line.

    Args:
        text: the documentation.
        ends: what ends a sentence, as an empty line does.
    """
    return [" ".join(each.split()) for each in re.split(rf"(?<=[{ends}])\s+|\n\s*\n", text)]


def parts_of(target: Any) -> Iterator[tuple[Any, str]]:
    """A target, the classes of its modules, and what it uses of the functions of its file, each with its text."""
    kinds = [type(each) for module in modules_in(target) for each in module.modules()]
    waiting = [target, *(each for each in dict.fromkeys(kinds) if not each.__module__.startswith("torch."))]
    known, texts = set[int](), list[str]()
    while waiting and len(texts) < MOST:
        text = source_of(each := waiting.pop(0))
        if id(each) in known or not text or text in texts:
            continue
        known.add(id(each))
        texts.append(text)
        yield each, text
        waiting += [used for _, used in _used(each, text) if inspect.isfunction(used) or inspect.isclass(used)]


def _kind_of(part: Any) -> Any:
    """What has a text: a class or a function; of a module, its class."""
    return part if inspect.isclass(part) or inspect.isroutine(part) else type(part)


def _used(target: Any, text: str) -> Iterator[tuple[str, Any]]:
    """What the names in the text of a target are in its file."""
    kind = _kind_of(target)
    file = getattr(kind, "__module__", None)
    methods = [each for each in vars(kind).values() if inspect.isfunction(each)] if inspect.isclass(kind) else [kind]
    names = next((each.__globals__ for each in methods if hasattr(each, "__globals__")), None)
    names = vars(sys.modules[file]) if names is None and file in sys.modules else names or {}
    for name in dict.fromkeys(_NAME.findall(text)):
        value = names.get(name)
        if isinstance(value, int | float) or (value is not None and getattr(value, "__module__", None) == file):
            yield name, value


def numbers_in(code: str, invocation: Invocation) -> frozenset[float]:
    """The numbers that are written in a text, that a target holds, and that it was told."""
    found: list[Any] = []
    for each in _NUMBER.findall(code):
        with suppress(ValueError):
            found.append(float(each.replace("_", "")))
    found += [value for _, value in _used(invocation.target, code)]
    for module in modules_in(invocation.target):
        for each in module.modules():
            for value in vars(each).values():
                found += [value] if isinstance(value, int | float) else _of_a_config(value)
    found += invocation.arguments.values()
    found += [
        float(each.partition("=")[2]) for each in invocation.assumptions if _NUMBER.fullmatch(each.partition("=")[2])
    ]
    return frozenset(float(each) for each in found if isinstance(each, int | float) and not isinstance(each, bool))


def _of_a_config(value: Any) -> list[Any]:
    """The fields of an object that is neither a module nor a collection."""
    if isinstance(value, nn.Module | dict | list | tuple | str) or not hasattr(value, "__dict__"):
        return []
    return [*vars(value).values()]


def is_commented_out(text: str, name: str) -> bool:
    """Whether a line that computes something of an argument stands in a comment, as # v = self.value(value)."""
    computed = rf"^[ \t]*#[ \t]*(?:self\.)?\w+[ \t]*=[^=#\n]*[(,][ \t]*{re.escape(name)}[ \t]*[,)]"
    return re.search(computed, text, re.M) is not None
