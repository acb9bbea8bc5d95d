"""`TextSource`: the texts of a file or of standard input, one at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from regard.errors import InputError, short_repr
from regard.files import error_reason
from regard.table_readers import (
    MissingColumnError,
    open_parquet,
    read_csv,
    read_jsonl,
    read_lines,
    read_parquet,
    read_tsv,
    strip_end,
)

TABLES = {".jsonl": read_jsonl, ".csv": read_csv, ".tsv": read_tsv, ".parquet": read_parquet}
SUFFIXES = (".txt", *TABLES)
BLOCK_BYTES = 2**20


@dataclass(frozen=True)
class TextSource:
    """The texts of a file, read one at a time; none is skipped, so that the n-th text is the n-th line or row.

    Args:
        path: ``.txt`` with a text on each line, ``.jsonl`` with an object on each line, ``.csv`` or ``.tsv`` with a
            header, ``.parquet``; ``-`` is standard input, a text on each line.
        column: of the texts, in a file that has columns; ``text`` by default.

    Raises:
        InputError: another file type; no such file; a column for a file without columns.
    """

    path: str
    column: str | None = None

    def __post_init__(self) -> None:
        if self.path != "-" and self.suffix not in SUFFIXES:
            raise InputError(f"{self.path}: texts are read from {', '.join(SUFFIXES)}, or from - for standard input")
        if self.column is not None and self._is_plain_text:
            raise InputError(f"column={self.column}: {self.name} has a text on each line, and no columns")
        try:
            if self.path != "-":
                os.stat(self.path)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.name} cannot be read: {error_reason(error)}") from error

    @property
    def suffix(self) -> str:
        """The suffix of the file's name, which decides how the file is read."""
        return Path(self.path).suffix.lower()

    @property
    def name(self) -> str:
        """The name in messages."""
        return "standard input" if self.path == "-" else self.path

    @property
    def _is_plain_text(self) -> bool:
        return self.path == "-" or self.suffix == ".txt"

    def location(self, index: int) -> str:
        """The line or row of a text, such as ``reviews.txt, line 7`` for the text with index 6."""
        return f"{self.name}, {'line' if self._is_plain_text or self.suffix == '.jsonl' else 'row'} {index + 1}"

    def __iter__(self) -> Iterator[str]:
        """Every text.

        Raises:
            InputError: the file cannot be read, or has something that is no text; the message names the line or row.
        """
        try:
            if self.path == "-":
                yield from self._read_lines(sys.stdin.buffer)
                return
            with open(self.path, "rb") as stream:
                yield from (self._read_lines if self._is_plain_text else self._read_column)(stream)
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error_reason(error)}") from error

    def count(self) -> int:
        """The number of texts, without parsing them where possible.

        Raises:
            InputError: as when they are read; standard input, which can be read only once.
        """
        if self.path == "-":
            raise InputError("standard input can be read only once, and by one process: shards need a file")
        try:
            if self.suffix == ".parquet":
                return int(open_parquet(self.path, self.name).metadata.num_rows)
            if self._is_plain_text or self.suffix == ".jsonl":
                with open(self.path, "rb") as stream:
                    return _count_lines(stream)
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error_reason(error)}") from error
        return sum(1 for _ in self)

    def _read_lines(self, stream: Iterable[bytes]) -> Iterator[str]:
        return (strip_end(line) for line, _ in read_lines(stream, self.name))

    def _read_column(self, stream: BufferedIOBase) -> Iterator[str]:
        column = "text" if self.column is None else self.column
        try:
            for row, location in TABLES[self.suffix](stream, self.name, [column]):
                if not isinstance(row[column], str):
                    raise InputError(f"{location}: {column!r} is {short_repr(repr(row[column]))}, which is not a text")
                yield row[column]
        except MissingColumnError as error:
            raise InputError(f"{error}. Name the texts' column with column=NAME") from error


def _count_lines(stream: BufferedIOBase) -> int:
    count, last = 0, b"\n"
    while block := stream.read(BLOCK_BYTES):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")
