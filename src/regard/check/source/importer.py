"""The object that FILE.py:NAME, or module.path:NAME, names; and what is told where it cannot be imported."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from regard.check.sandbox.answer import error_text, first_line, wants_memory
from regard.check.source.notebook import NOTEBOOK_SUFFIX, NotebookRun, read_notebook
from regard.check.source.packages import import_file
from regard.errors import InputError

__all__ = ["is_path", "load"]

IMPORTERS = frozenset({__file__, pkgutil.__file__, importlib.__file__, import_file.__code__.co_filename})
"""Files whose frames are those of an import, and not of what is imported."""
MAX_LISTED = 10
"""Names of a module that has not the one that is wanted."""


def is_path(path: str) -> bool:
    """Whether the part before the colon is a file, and not the name of a module."""
    return path.endswith((".py", NOTEBOOK_SUFFIX)) or "/" in path


def load(target: str, notes: list[str], *, cell_seconds: float | None = None) -> Any:
    """The object that FILE.py:NAME, LESSON.ipynb:NAME or module.path:NAME names.

    NAME may be dotted, as in Outer.Inner. The current folder is on the path, and so is the file's.

    Args:
        target: the file or the module, a colon and the name.
        notes: gets what is to be told of the loading: the lines and cells of a notebook that were left out.
        cell_seconds: when the cells of a notebook are stopped; None for no limit.

    Raises:
        InputError: there is no such file or name, the file is not Python, or it raises anything while it is imported,
            `SystemExit` and `KeyboardInterrupt` included; the message has the line.
    """
    path, colon, name = target.rpartition(":")
    if not colon or not name:
        raise InputError(
            f"{target!r} names no implementation: give FILE.py:NAME, such as attention.py:MultiHeadAttention"
        )
    if is_path(path) and not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    if path.endswith(NOTEBOOK_SUFFIX):
        run = read_notebook(path).run(cell_seconds)
        notes += run.notes
        return _found(run.module, path, name, run)
    if is_path(path) and importlib.util.spec_from_file_location("", path) is None:
        raise InputError(f"{path}: not a Python file")
    with _errors_told(path, is_path(path)):
        if is_path(path):
            module: Any = import_file(Path(path))
        else:
            if os.getcwd() not in sys.path:
                sys.path.insert(0, os.getcwd())
            module = _imported(path)
    with _errors_told(path, is_path(path)):
        return _found(module, path, name)


def _imported(path: str) -> Any:
    """The module, or what a module keeps, of a dotted name; `pkgutil` alone hides why a module cannot be imported."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise  # What that module imports is missing, and not the module.
        return pkgutil.resolve_name(path)


def _found(module: Any, path: str, name: str, run: NotebookRun | None = None) -> Any:
    """What a dotted name names in a module.

    Raises:
        InputError: nothing, a method, or nothing that can be called.
    """
    found, owner = module, None
    for part in name.split("."):
        found, owner = getattr(found, part, None), found
    if found is None:
        failed = f"; {run.failures[0]}" if run is not None and run.failures else ""
        raise InputError(f"{path} has no {name}; it has {_listed(module, name)}{failed}")
    if inspect.isclass(owner) and inspect.isfunction(found) and not _is_static(owner, found.__name__):
        raise InputError(f"{path}:{name} is a method: give its class, {path}:{name.rpartition('.')[0]}")
    if not callable(found):
        raise InputError(f"{path}:{name} is a {type(found).__name__}; check takes a function, a class or a module")
    return found


def _is_static(owner: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(owner, name, None), staticmethod)


def _listed(module: Any, wanted: str) -> str:
    """The functions and classes that a module is imported for: of many those that are called much as what is wanted."""
    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    names = list(dict.fromkeys([*own, *getattr(module, "__all__", ())]))
    if len(names) > MAX_LISTED:
        names = [*(get_close_matches(wanted, names, MAX_LISTED) or names[:MAX_LISTED]), "others"]
    return ", ".join(names) or "no function or class"


@contextmanager
def _errors_told(path: str, is_file: bool) -> Iterator[None]:
    """Whatever the block raises is an InputError of one line; too little memory is told by the process's limits."""
    try:
        yield
    except InputError:
        raise
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
        says = f"importing it raises {first_line(error_text(error))}"
        if isinstance(error, EOFError):
            says += " (in a check, the standard input is empty)"
        if at is None and own:
            says += f", at {own[-1][0]}:{own[-1][1]}"
    else:
        return f"{path}: no such file, and no module of that name: {error}"
    return f"{path if is_file and _same_file(file, path) else file}{'' if at is None else f':{at}'}: {says}"


def _same_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
