"""Facts as plain lists and numbers, and files that are written whole."""

from __future__ import annotations

import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import InputError

__all__ = ["ensure_writable", "plain", "write_json", "write_text"]


def plain(value: Any) -> Any:
    """Tensors and dataclasses as lists, numbers and dicts."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value


def write_json(facts: dict[str, Any], path: str | Path) -> None:
    """Write plain facts as JSON; the file appears whole or not at all.

    Raises:
        InputError: the path cannot be written.
        ValueError: a number is NaN or infinite, which JSON does not have.
    """
    write_text(json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path)


def write_text(text: str, path: str | Path) -> None:
    """Write a text as a file that appears whole or not at all.

    Raises:
        InputError: the path cannot be written.
    """
    try:
        _write(text, Path(path))
    except (OSError, RuntimeError, ValueError) as error:  # the latter two for names that no file can have
        raise InputError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error


def ensure_writable(path: str | Path) -> Path:
    """The absolute path of a file that can be written.

    Raises:
        InputError: the folder does not exist or cannot be written to; or the path is no file.
    """
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise InputError(f"cannot write {str(path)!r}: it is no file")
        if not target.parent.is_dir():
            raise InputError(f"cannot write {str(path)!r}: there is no folder {str(target.parent)!r}")
        if not os.access(target.parent, os.W_OK):
            raise InputError(f"cannot write {str(path)!r}: the folder {str(target.parent)!r} cannot be written to")
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # names that no file can have, links that form a circle
        raise InputError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    return target


def _write(text: str, target: Path) -> None:
    """Write a file whole or not at all. A device or a pipe has nothing to lose, and must not be replaced by a file."""
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    target = target.resolve()
    partial = target.with_name(f".{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
