"""Atomic writes: files that appear whole or not at all; locks; and dataclasses as JSON."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from regard.errors import InputError

DRAFT = ".draft-"
"""The names of unfinished files and folders begin with this; a process that is killed leaves them behind."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path next to another one, which it replaces at the end of the block.

    If the block raises an error, the temporary file or folder is removed and the other path stays as it was. A device
    or a pipe has no content to protect, and must not be replaced by a file: its own path is returned.

    Args:
        path: of a file, or of a folder that does not exist.

    Yields:
        Where to write.
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    target = target.resolve()
    draft = target.parent / f"{DRAFT}{uuid4().hex}"
    try:
        yield draft
        draft.replace(target)
    finally:
        _remove(draft)


def publish(draft: Path, target: Path) -> None:
    """Give a finished file its name, without ever replacing a file that has it.

    Args:
        draft: the file, on the disk of its target.
        target: its name.

    Raises:
        FileExistsError: there is a file or a folder of this name.
        OSError: the folder cannot be written to.
    """
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, such as exFAT
        with open(target, "xb"):
            draft.replace(target)
    else:
        draft.unlink()


def try_lock(stream: FileIO) -> bool:
    """Lock an open file, until it is closed or the process ends in whatever way, also killed.

    Returns:
        Whether this process has the lock; False if another has it. On Windows nothing is locked, and it is True.

    Raises:
        InputError: a file system without locks.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise InputError(
            f"{stream.name} cannot be locked: {error_reason(error)}. Without a lock two runs could spoil each other's "
            "files: name a place on another disk"
        ) from error
    return True


def remove_drafts(folder: Path) -> None:
    """Remove the unfinished files and folders that killed processes left in a folder."""
    for draft in folder.glob(f"{DRAFT}*"):
        _remove(draft)


def fsync(path: Path) -> None:
    """Wait until a file, or every file of a folder, is on the disk."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except (OSError, ValueError) as error:  # a ValueError is for names that no file can have
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def write_text(text: str, path: str | Path) -> None:
    """Write a text file atomically.

    Raises:
        InputError: the path cannot be written.
    """
    try:
        with atomic_path(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:  # the latter two for names that no file can have
        raise InputError(f"cannot write {str(path)!r}: {error_reason(error)}") from error


def write_json(value: Any, path: str | Path) -> None:
    """Write a JSON file atomically.

    Raises:
        InputError: the path cannot be written.
        ValueError: a number is NaN or infinite, which JSON does not have.
    """
    write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path)


def ensure_writable(path: str | Path) -> Path:
    """The absolute path of a file that can be written.

    Raises:
        InputError: the folder does not exist or cannot be written to; or the path is no file.
    """
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise OSError("it is no file")
        if not target.parent.is_dir():
            raise OSError(f"there is no folder {str(target.parent)!r}")
        if not os.access(target.parent, os.W_OK):
            raise OSError(f"the folder {str(target.parent)!r} cannot be written to")
    except (OSError, RuntimeError, ValueError) as error:  # also names that no file can have, links that form a circle
        raise InputError(f"cannot write {str(path)!r}: {error_reason(error)}") from error
    return target


def _remove(path: Path) -> None:
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def error_reason(error: BaseException) -> str:
    """The reason that the operating system gives for an error, without the path; else the error's message."""
    return str(getattr(error, "strerror", None) or error)


def to_builtins(value: Any) -> Any:
    """Tensors, dataclasses and lists of them as lists, numbers and dicts."""
    if hasattr(value, "tolist"):  # a tensor; without torch.Tensor, since the command line imports this module first
        return value.tolist()
    if isinstance(value, list):
        return [to_builtins(item) for item in value]
    if is_dataclass(value):
        return {field.name: to_builtins(getattr(value, field.name)) for field in fields(value)}
    return value
