"""The files of a data set, before they are read: paths and patterns, formats, fingerprints."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from regard.errors import InputError, short_repr
from regard.progress_bar import progress_bar

FORMATS = {
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".parquet": "parquet",
}
"""The formats by the ending of the name; any other file of texts is one text."""
MAX_LISTED_FILES = 100
"""``run.json`` lists at most this many files."""


@dataclass(frozen=True)
class DataFile:
    """A file of rows."""

    path: str
    """As the user gave it."""
    format: str
    """``tsv``, ``jsonl``, ``parquet`` or ``text``."""
    size: int
    """In bytes."""


def find_files(paths: Sequence[str | Path], content: str) -> list[DataFile]:
    """The files of some paths and patterns, in their order; those of a pattern sorted by name.

    Args:
        paths: files, or patterns such as ``corpus/**/*.txt``.
        content: ``pairs`` or ``texts``.

    Raises:
        InputError: no file; a folder; an empty file; a file that is given twice, or has an unknown format or another
            format than the others.
    """
    found = [require_file(path) for path in chain.from_iterable(map(_expand, paths))]
    resolved: dict[Path, Path] = {}
    for path in found:
        if path.resolve() in resolved:
            raise InputError(f"{path} is given twice (as {resolved[path.resolve()]}): each file is read once")
        resolved[path.resolve()] = path
    files = [DataFile(str(path), _format_of(path, content), path.stat().st_size) for path in found]
    for file in files:
        if file.format != files[0].format:
            raise InputError(
                f"{files[0].path} is {_format_name(files[0])} and {file.path} is {_format_name(file)}: "
                "give files of one format, or convert them to one"
            )
    return files


def require_file(path: Path) -> Path:
    """A path that is a file with content.

    Raises:
        InputError: the path is no such file.
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
    except OSError as error:  # a name that is too long, a folder without permission
        raise InputError(f"{short_repr(str(path))} cannot be read: {error.strerror}") from error
    return path


def fingerprint_files(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Facts that show whether files have changed: the first hundred by name, and one fingerprint of all.

    Raises:
        InputError: a file cannot be read.
    """
    fingerprint = hashlib.blake2b(digest_size=16)
    files: list[dict[str, Any]] = []
    num_bytes = 0
    with progress_bar("hashing the files", sum(Path(path).stat().st_size for path in paths)) as on_progress:
        for path in paths:
            try:
                with open(path, "rb") as raw:
                    digest = hashlib.file_digest(raw, lambda: hashlib.blake2b(digest_size=16))
                    size = raw.tell()
            except OSError as error:
                raise InputError(f"{path} cannot be read: {error.strerror}") from error
            fingerprint.update(digest.digest())
            if len(files) < MAX_LISTED_FILES:
                files.append({"file": str(Path(path).resolve()), "bytes": size, "blake2b": digest.hexdigest()})
            num_bytes += size
            on_progress(num_bytes)
    return {"files": files, "num_files": len(paths), "bytes": num_bytes, "fingerprint": fingerprint.hexdigest()}


def _format_of(path: Path, content: str) -> str:
    name = path.name.lower()
    for ending, file_format in FORMATS.items():
        if name.endswith(ending) and (file_format != "tsv" or content == "pairs"):
            return file_format
    if content == "pairs":
        raise InputError(
            f"{path}: pairs are read from {', '.join(FORMATS)}, by the ending of the name. "
            "As .tsv, each line is a source, a tab and a target"
        )
    return "text"


def _expand(path: str | Path) -> list[Path]:
    name = Path(os.path.expanduser(path))  # unlike Path.expanduser, it does not change an unknown ~user
    if not glob.has_magic(str(name)) or name.exists():
        return [name]
    matches = [Path(match) for match in sorted(glob.glob(str(name), recursive=True))]
    matches = [match for match in matches if not match.is_dir()]
    if not matches:
        raise InputError(f"{str(path)!r} matches no file (from {Path.cwd()})")
    return matches


def _format_name(file: DataFile) -> str:
    return "plain text" if file.format == "text" else f"of the format {file.format}"
