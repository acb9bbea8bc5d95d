"""Arguments of a constructor that are written as Python: what a file's own names make of them."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from regard.check.sandbox.answer import error_text
from regard.errors import InputError

__all__ = ["with_values"]

_OF_VALUES = (
    ast.Call,
    ast.Attribute,
    ast.List,
    ast.ListComp,
    ast.Dict,
    ast.DictComp,
    ast.Tuple,
    ast.Lambda,
    ast.Subscript,
)
"""What is written so is computed where all of its names are known; a name alone, as relu, is a text."""


def with_values(args: Mapping[str, Any], implementation: Any) -> dict[str, Any]:
    """Arguments, with each text that is computed of names of the implementation's module, or of Python, as its value.

    Such as ``GPTConfig(n_head=4)``, ``dict(heads=4, dtype=torch.float32)`` or ``[np.ones((8, 2)) for _ in range(4)]``;
    any other text is a text.

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
    body = tree.body
    while isinstance(body, ast.BinOp):  # np.random.randn(8, 8) / 6; names alone, as x/y, are a text
        body = body.left if isinstance(body.left, (*_OF_VALUES, ast.BinOp)) else body.right
    if not isinstance(body, _OF_VALUES) or not _read_names(tree) <= {*names, *dir(builtins)}:
        return written
    try:
        return eval(compile(tree, f"--arg {name}", "eval"), dict(names))
    except Exception as error:
        raise InputError(f"--arg {name}={written}: {error_text(error)}") from error


def _read_names(tree: ast.AST) -> set[str]:
    """The names that an expression reads and does not bind itself, as the variable of a comprehension is."""
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    bound = {each.id for each in found if isinstance(each.ctx, ast.Store)}
    arguments = {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
    return {each.id for each in found} - bound - arguments


def _names(implementation: Any) -> Mapping[str, Any]:
    """What the names of a module mean in which something is written; of a function, what they mean in its code."""
    found = inspect.unwrap(implementation) if inspect.isroutine(implementation) else implementation
    if hasattr(found, "__globals__"):
        return found.__globals__  # type: ignore[no-any-return]
    kind = found if inspect.isclass(found) else type(found)
    own = next((each.__globals__ for each in vars(kind).values() if inspect.isfunction(each)), None)
    return own if own is not None else vars(sys.modules.get(kind.__module__, sys))
