"""`Manifest`: the file that makes a folder of parts regard's own, lists the parts, and is locked while a run has it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from regard.errors import InputError
from regard.files import DRAFT, error_reason, try_lock

MANIFEST = "job.jsonl"
PROGRAM = "regard embed"
MAX_ATTEMPTS = 100
"""How often a folder is opened that other processes make or remove at the same moment."""


@dataclass(frozen=True)
class FinishedPart:
    """A line of the manifest."""

    first: int
    """The index of the part's first text in the input."""
    texts: str
    """The hash of the part's texts."""
    num_truncated: int
    """How many of the texts were truncated."""
    sha256: str
    """The hash of the part's file."""


class Manifest:
    """``job.jsonl``: in the first line an id and the settings of the job, in each other line a finished part.

    The names of a job's files hold the id, so that they are nobody else's: what else is in the folder is never read,
    replaced or deleted. The operating system ends the lock with the process that holds it, also when that is killed.

    Args:
        folder: the folder of the manifest.
        stream: the manifest, open and locked.

    Raises:
        InputError: the manifest is damaged.
    """

    def __init__(self, folder: Path, stream: FileIO) -> None:
        self.folder, self._stream = folder, stream
        content = stream.readall()
        header_size = content.find(b"\n") + 1
        facts, lines = _read_header(content[:header_size]), content[header_size:].split(b"\n")
        if facts is None:
            raise _foreign(folder)
        # Nothing follows the last line break, or a line that a killed process did not finish.
        stream.truncate(stream.seek(-len(lines.pop()), os.SEEK_END))
        self._id: str = facts["id"]
        self.settings: dict[str, Any] = facts["settings"]
        self.parts: dict[int, FinishedPart] = {}
        for number, line in enumerate(lines, 2):
            part = _read_part(line)
            if part is None:
                raise InputError(
                    f"{folder / MANIFEST}, line {number} is damaged: move {folder} away, or name another output"
                )
            self.parts[part.first] = part

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, str]) -> Manifest:
        """The manifest of a folder, for this process alone; where there is none, a new folder.

        Args:
            folder: a folder that `ensure_own` accepts.
            settings: of a new job, or of a job without finished parts.

        Raises:
            InputError: the folder is not regard's, or another process works in it; the manifest is damaged.
            OSError: the folder cannot be made, or its manifest cannot be written.
        """
        for _ in range(MAX_ATTEMPTS):
            ensure_own(folder)
            stream = _open_locked(folder) or _create(folder, settings)
            if stream is None:
                continue
            with _closed_on_error(stream):
                manifest = cls(folder, stream)
            if manifest.parts or manifest.settings == dict(settings):
                return manifest
            with closing(manifest):
                manifest.remove()
        raise _busy(folder)

    def file(self, part: FinishedPart) -> Path:
        """The file of a part."""
        return self.folder / f"{part.first:012}-{self._id}.part"

    @property
    def draft(self) -> Path:
        """The file that is being written."""
        return self.folder / f"{DRAFT}{self._id}"

    def append(self, part: FinishedPart) -> None:
        """Add a part, before its file gets its name: a file of this job is never unknown."""
        _write_line(self._stream, asdict(part))
        self.parts[part.first] = part

    def remove(self) -> None:
        """Delete the files of the job, and the folder if it is empty then.

        Raises:
            OSError: a file cannot be deleted.
        """
        for path in (self.draft, *map(self.file, self.parts.values()), self.folder / MANIFEST):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def close(self) -> None:
        """Close and unlock the manifest."""
        self._stream.close()


def ensure_own(folder: Path) -> None:
    """Ensure that a folder has a manifest of regard, or nothing, or does not exist.

    Raises:
        InputError: it is not regard's.
    """
    try:
        if not os.path.lexists(folder):
            return
        if folder.is_dir() and not folder.is_symlink():
            if not any(folder.iterdir()):
                return
            if (folder / MANIFEST).is_file():
                with open(folder / MANIFEST, "rb") as stream:
                    if _read_header(stream.readline()) is not None:
                        return
    except FileNotFoundError:  # another process removes it
        return
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error_reason(error)}") from error
    raise _foreign(folder)


def _foreign(folder: Path) -> InputError:
    return InputError(
        f"{folder} is where finished parts are kept, and what is there was not made by {PROGRAM}: move it away, or "
        "name another output"
    )


def _busy(folder: Path) -> InputError:
    return InputError(f"another run works in {folder} now: wait for its end, or name another output")


def _open_locked(folder: Path) -> FileIO | None:
    """The manifest that a folder has; None if there is none."""
    path = folder / MANIFEST
    try:
        stream = FileIO(path, "r+")
    except FileNotFoundError:
        return None
    with _closed_on_error(stream):
        if not try_lock(stream):
            raise _busy(folder)
        with suppress(FileNotFoundError):
            if os.path.samefile(path, stream.fileno()):
                return stream
    stream.close()  # the run that held the lock has finished the job and removed the folder
    return None


def _create(folder: Path, settings: Mapping[str, str]) -> FileIO | None:
    """A new manifest in a new folder, which appears with it; None if another process makes the folder first."""
    draft = folder.with_name(f"{DRAFT}{uuid4().hex}")
    try:
        draft.mkdir()
        stream = FileIO(draft / MANIFEST, "x+")
        with _closed_on_error(stream):
            try_lock(stream)
            _write_line(stream, {"program": PROGRAM, "id": uuid4().hex, "settings": dict(settings)})
            stream.seek(0)
            draft.rename(folder)  # replaces an empty folder, and no other
            return stream
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return None
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # there is none after it was renamed


@contextmanager
def _closed_on_error(stream: FileIO) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stream.close()
        raise


def _write_line(stream: FileIO, facts: Mapping[str, Any]) -> None:
    line = memoryview(json.dumps(facts).encode() + b"\n")
    while line:  # on a full disk the first bytes may be written
        line = line[stream.write(line) :]
    os.fsync(stream.fileno())


def _read_header(line: bytes) -> dict[str, Any] | None:
    """The first line of a manifest; None if regard did not write it."""
    header = _read_json(line)
    own = (
        line.endswith(b"\n")
        and isinstance(header, dict)
        and header.get("program") == PROGRAM
        and re.fullmatch("[0-9a-f]{32}", str(header.get("id")))
        and isinstance(header.get("settings"), dict)
    )
    return header if own else None


def _read_part(line: bytes) -> FinishedPart | None:
    """A line of a part; None if it is damaged."""
    try:
        part = FinishedPart(**_read_json(line))
    except TypeError:
        return None
    return part if [type(value) for value in asdict(part).values()] == [int, str, int, str] else None


def _read_json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
