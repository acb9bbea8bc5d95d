"""Arguments of a constructor that are written as Python: what a file's own names make of them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from regard.check.sandbox.answer import error_text
from regard.errors import InputError

__all__ = ["with_values"]


def with_values(args: Mapping[str, Any], implementation: Any) -> dict[str, Any]:
    """Arguments, with each text that calls or looks up something of the implementation's module as its value.

    Such as ``GPTConfig(n_head=4)`` or ``torch.float32``; any other text is a text.

    Args:
        args: by name.
        implementation: a function, a class or an object, whose module's names are known.

    Raises:
        InputError: such a call raises; with its name and the error.
    """
    names = _names(implementation)
    return {name: _with_values(name, each, names) for name, each in args.items()}


def _with_values(name: str, value: Any, names: Mapping[str, Any]) -> Any:
    """The value of a text, or of the fields of a config."""
    if isinstance(value, dict):
        return {field: _with_values(f"{name}.{field}", each, names) for field, each in value.items()}
    return _value(name, value, names) if isinstance(value, str) else value


def _value(name: str, written: str, names: Mapping[str, Any]) -> Any:
    try:
        tree = ast.parse(written, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return written
    root: Any = tree.body
    if not isinstance(root, ast.Call | ast.Attribute):
        return written
    while isinstance(root, ast.Call | ast.Attribute):
        root = root.func if isinstance(root, ast.Call) else root.value
    if not isinstance(root, ast.Name) or root.id not in names:
        return written
    try:
        return eval(compile(tree, f"--arg {name}", "eval"), dict(names))
    except Exception as error:
        raise InputError(f"--arg {name}={written}: {error_text(error)}") from error


def _names(implementation: Any) -> Mapping[str, Any]:
    """What the names of a module mean in which something is written; of a function, what they mean in its code."""
    found = inspect.unwrap(implementation) if inspect.isroutine(implementation) else implementation
    if hasattr(found, "__globals__"):
        return found.__globals__  # type: ignore[no-any-return]
    kind = found if inspect.isclass(found) else type(found)
    own = next((each.__globals__ for each in vars(kind).values() if inspect.isfunction(each)), None)
    return own if own is not None else vars(sys.modules.get(kind.__module__, sys))
