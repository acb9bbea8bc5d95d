"""The texts of classes, each file parsed once: `inspect.getsource` parses the whole file for each of its classes."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["text_of_class"]


def text_of_class(kind: type) -> str:
    """The text of a class, as `inspect.getsource` gives it.

    Raises:
        OSError: its file cannot be read, or holds no such class.
        TypeError: it is built in.
    """
    file = inspect.getsourcefile(kind)
    if file is not None:
        linecache.checkcache(file)
        lines = linecache.getlines(file, vars(sys.modules.get(kind.__module__, object)))
        starts = _classes_in("".join(lines)).get(kind.__qualname__, [])
        if len(starts) == 1:  # of several by one name each version of Python takes another
            return "".join(inspect.getblock(lines[starts[0] - 1 :]))
    return inspect.getsource(kind)


@lru_cache(maxsize=64)
def _classes_in(text: str) -> dict[str, list[int]]:
    """The classes of a file by their qualified names, with the lines at which they begin, decorators included."""
    found: dict[str, list[int]] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return found
    for name, each in _named(tree, ""):
        found.setdefault(name, []).append(min([each.lineno, *(one.lineno for one in each.decorator_list)]))
    return found


def _named(node: ast.AST, within: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Each class below a node with its qualified name."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield f"{within}{each.name}", each
            yield from _named(each, f"{within}{each.name}.")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _named(each, f"{within}{each.name}.<locals>.")
        elif isinstance(each, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _named(each, within)
