"""The object that FILE.py:NAME, or module.path:NAME, names; and what is told where it cannot be imported."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.check.answer import error_text, wants_memory
from regard.errors import InputError

__all__ = ["load"]

IMPORTERS = frozenset({__file__, pkgutil.__file__, importlib.__file__})
"""Files whose frames are those of an import, and not of what is imported."""


def load(target: str) -> Any:
    """The object that FILE.py:NAME, or module.path:NAME, names.

    Raises:
        InputError: there is no such file or name, the file is not Python, or it raises anything while it is imported,
            `SystemExit` and `KeyboardInterrupt` included; the message has the line.
    """
    path, colon, name = target.rpartition(":")
    if not colon or not name:
        raise InputError(
            f"{target!r} names no implementation: give FILE.py:NAME, such as attention.py:MultiHeadAttention"
        )
    is_file = path.endswith(".py") or "/" in path
    if is_file and not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    if is_file and importlib.util.spec_from_file_location("", path) is None:
        raise InputError(f"{path}: not a Python file")
    with _errors_told(path, is_file):
        module = _import_file(Path(path)) if is_file else pkgutil.resolve_name(path)
        found = module
        for part in name.split("."):
            found = getattr(found, part, None)
    if found is None:
        raise InputError(f"{path} has no {name}; it has {', '.join(_own(module)) or 'no function or class'}")
    if not callable(found):
        raise InputError(f"{target} is a {type(found).__name__}; check takes a function, a class or a module")
    return found


def _import_file(path: Path) -> ModuleType:
    name = f"regard_checked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _own(module: Any) -> list[str]:
    """The functions and classes that are written in a module."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__
    ]


@contextmanager
def _errors_told(path: str, is_file: bool) -> Iterator[None]:
    """Whatever the block raises is an InputError of one line; too little memory is told by the process's limits."""
    try:
        yield
    except BaseException as error:
        if wants_memory(error):
            raise
        raise InputError(_message(path, is_file, error)) from error


def _message(path: str, is_file: bool, error: BaseException) -> str:
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    # Not the machinery's, and not of a module that says by __getattr__ what it lacks.
    own = [(code.co_filename, line) for code, line in frames if code.co_name != "__getattr__"]
    own = [(file, line) for file, line in own if file not in IMPORTERS and not file.startswith("<frozen ")]
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        file, at, says = str(error.filename), error.lineno, f"not Python: {error.msg}"
    elif own or is_file:
        # The deepest frame in the file that was asked for: what it calls may be in any library.
        file = path if is_file else own[0][0]
        at = next((line for each, line in reversed(own) if _same_file(each, file)), None)
        says = f"importing it raises {error_text(error).splitlines()[0]}"
        if isinstance(error, EOFError):
            says += " (in a check, the standard input is empty)"
    else:
        return f"{path}: no such file, and no module of that name: {error}"
    return f"{path if is_file and _same_file(file, path) else file}{'' if at is None else f':{at}'}: {says}"


def _same_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
