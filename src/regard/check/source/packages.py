"""A file imported by its path: by itself, or as a module of the package that it belongs to."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

__all__ = ["import_file"]

ALIAS = "regard_checked_"
"""The beginning of the names that are given to modules here: nobody else's begin like this."""
MAX_DEPTH = 6
"""How many folders a relative import may lead up."""
TOO_HIGH = "beyond top-level package"
"""What Python says of a relative import that leads out of the package."""


def import_file(path: Path) -> ModuleType:
    """The module of a Python file.

    A file whose folder has an ``__init__.py``, or that has relative imports, is imported as a part of its package.
    Where the package cannot be imported, the file is, by itself, if it needs nothing of it. What it imports and nobody
    has is looked for in the folders above it: a project is run from its top. The folders that it imports from stay on
    the path: a function may import when it is called.

    Args:
        path: of the file.
    """
    path = Path(os.path.abspath(path))
    tried: set[Path] = set()
    while True:
        known = set(sys.modules)
        try:
            return _imported(path)
        except ModuleNotFoundError as error:
            name = error.name or ""
            folder = next((each for each in _folders(path) if each not in tried and _has_module(each, name)), None)
            if folder is None:
                raise
            tried.add(folder)
            _forget(name.partition(".")[0], set(sys.modules) - known)
            _put_on_path(folder)


def _imported(path: Path) -> ModuleType:
    relative = _relative_level(path)
    depth = _depth(path, relative)
    if not depth:
        return _import_alone(path)
    try:
        return _import_in_package(path, depth)
    except Exception:
        if relative:
            raise
        return _import_alone(path)


def _folders(path: Path) -> list[Path]:
    """Where modules of the project of a file may lie: the folders above it, the nearest first, and the current one."""
    return [*path.parents[1 : 1 + MAX_DEPTH], Path.cwd()]


def _has_module(folder: Path, name: str) -> bool:
    place = folder.joinpath(*name.split("."))
    return bool(name) and (place.is_dir() or place.with_suffix(".py").is_file())


def _forget(top: str, names: set[str]) -> None:
    """Forget those of some modules that belong to a package: another of its name is meant."""
    for name in names:
        if name.partition(".")[0] == top:
            del sys.modules[name]


def _relative_level(path: Path) -> int:
    """How many dots the relative imports of a file have at most; 0 where there are none, or it is not Python."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        return max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    return 0


def _depth(path: Path, relative: int) -> int:
    """How many folders above a file belong to its package: by their ``__init__.py``, and by its relative imports."""
    folders = path.parents
    depth = 0
    while depth < len(folders) - 1 and (depth < relative or (folders[depth] / "__init__.py").is_file()):
        depth += 1
    return depth


def _import_alone(path: Path) -> ModuleType:
    name = f"{ALIAS}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _put_on_path(path.parent)
    spec.loader.exec_module(module)
    return module


def _import_in_package(path: Path, depth: int) -> ModuleType:
    """Import a file under its dotted name; one folder higher where a module that it imports leads up further."""
    try:
        top = path.parents[depth - 1]
        names = [folder.name for folder in reversed(path.parents[:depth])]
        if path.stem != "__init__":
            names.append(path.stem)
        _put_on_path(top.parent)
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # for siblings by their plain names, after all that is installed
        if "." in names[0] or not _is_free(names[0], top):
            names[0] = _import_alias(top)
        return importlib.import_module(".".join(names))
    except ImportError as error:
        if TOO_HIGH not in str(error) or depth >= min(MAX_DEPTH, len(path.parents) - 1):
            raise
        return _import_in_package(path, depth + 1)


def _put_on_path(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _is_free(name: str, folder: Path) -> bool:
    """Whether a package's name is not that of another module that was imported already."""
    known = sys.modules.get(name)
    return known is None or str(folder) in [os.path.abspath(each) for each in getattr(known, "__path__", ())]


def _import_alias(folder: Path) -> str:
    """Import a folder as a package of a name that is free, and return the name."""
    name = f"{ALIAS}{folder.name.replace('.', '_')}"
    if name not in sys.modules:
        init = folder / "__init__.py"
        if init.is_file():
            spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            sys.modules[name] = module = ModuleType(name)
            module.__path__ = [str(folder)]
    return name
