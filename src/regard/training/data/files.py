"""The files that somebody names, before any is read."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from regard.errors import InputError, quoted
from regard.training.data.progress import progress_bar

__all__ = ["File", "existing", "facts", "files", "kind_of"]

ENDINGS = {
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".parquet": "parquet",
}
"""What is known by its ending; any other file of texts is one text."""
LISTED = 100
"""A run's folder names so many files one by one."""


@dataclass(frozen=True)
class File:
    """A file of rows."""

    path: str
    """As it was given."""
    kind: str
    """``tsv``, ``jsonl``, ``parquet`` or ``text``."""
    size: int
    """In bytes."""


def files(paths: Sequence[str | Path], what: str) -> list[File]:
    """The files of some paths and patterns, in their order; those of a pattern in the order of their names.

    Args:
        paths: files, or patterns such as ``corpus/**/*.txt``.
        what: ``pairs`` or ``texts``.

    Raises:
        InputError: nothing is there; a folder; an empty file; a file that is named twice, of an unknown kind, or of
            another kind than the others.
    """
    found = [existing(path) for path in chain.from_iterable(map(_expanded, paths))]
    seen: dict[Path, Path] = {}
    for path in found:
        if path.resolve() in seen:
            raise InputError(f"{path} is given twice (as {seen[path.resolve()]}): each file is read once")
        seen[path.resolve()] = path
    listed = [File(str(path), kind_of(path, what), path.stat().st_size) for path in found]
    for file in listed:
        if file.kind != listed[0].kind:
            raise InputError(
                f"{listed[0].path} is {_called(listed[0])} and {file.path} is {_called(file)}: "
                "give files of one kind, or turn them into one"
            )
    return listed


def existing(path: Path) -> Path:
    """A path that is a file with something in it.

    Raises:
        InputError: it is not.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder where files are wanted: name them, as in '{path}/**/*.txt'")
        if not path.exists():
            raise InputError(f"{path}: there is no such file")
        if not path.is_file():
            raise InputError(f"{path} is no file that can be read more than once: write it to a file first")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty: leave it out, or fill it")
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise InputError(f"{quoted(str(path))} cannot be read: {error.strerror}") from error
    return path


def kind_of(path: Path, what: str) -> str:
    """The kind of a file, by its ending.

    Raises:
        InputError: pairs are in no such file.
    """
    name = path.name.lower()
    for ending, kind in ENDINGS.items():
        if name.endswith(ending) and (kind != "tsv" or what == "pairs"):
            return kind
    if what == "pairs":
        raise InputError(
            f"{path}: pairs are read from {', '.join(ENDINGS)}, by the ending of the name. "
            "As .tsv, each line is a source, a tab and a target"
        )
    return "text"


def facts(paths: Sequence[str | Path]) -> dict[str, Any]:
    """What tells whether files are still the same: the first hundred by name, and one fingerprint over all.

    Raises:
        InputError: one cannot be read.
    """
    every = hashlib.blake2b(digest_size=16)
    listed: list[dict[str, Any]] = []
    read = 0
    with progress_bar("looking at the files", sum(Path(path).stat().st_size for path in paths)) as on_progress:
        for path in paths:
            try:
                with open(path, "rb") as raw:
                    one = hashlib.file_digest(raw, lambda: hashlib.blake2b(digest_size=16))
                    size = raw.tell()
            except OSError as error:
                raise InputError(f"{path} cannot be read: {error.strerror}") from error
            every.update(one.digest())
            if len(listed) < LISTED:
                listed.append({"file": str(Path(path).resolve()), "bytes": size, "blake2b": one.hexdigest()})
            read += size
            on_progress(read)
    return {"files": listed, "how_many_files": len(paths), "bytes": read, "fingerprint": every.hexdigest()}


def _expanded(path: str | Path) -> list[Path]:
    name = Path(os.path.expanduser(path))  # which, unlike Path's, leaves an unknown ~user as it is
    if not glob.has_magic(str(name)) or name.exists():
        return [name]
    found = [Path(match) for match in sorted(glob.glob(str(name), recursive=True))]
    found = [match for match in found if not match.is_dir()]
    if not found:
        raise InputError(f"{str(path)!r} matches no file (from {Path.cwd()})")
    return found


def _called(file: File) -> str:
    return "plain text" if file.kind == "text" else f"of the kind {file.kind}"
