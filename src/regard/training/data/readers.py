"""Rows of training files: `read_rows` for TSV pairs, JSONL, Parquet, and files that are one text."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase

from regard.errors import InputError, short_repr
from regard.files import error_reason
from regard.table_readers import LocatedRow, Row, decode_utf8, read_jsonl, read_lines, read_parquet, strip_end
from regard.training.data.data_files import DataFile


def read_rows(
    file: DataFile, columns: Sequence[str], on_progress: Callable[[int], None] = lambda num_bytes: None
) -> Iterator[Row]:
    """The rows of a file, one at a time.

    Args:
        file: to read.
        columns: that each row needs.
        on_progress: is called with the number of bytes read.

    Yields:
        The columns, each a text that is not empty, and ``location``: the file and the line.

    Raises:
        InputError: a file or a row that cannot be used, with file and line.
    """
    try:
        with open(file.path, "rb") as raw:
            if os.fstat(raw.fileno()).st_size != file.size:
                raise InputError(f"{file.path} has changed since it was first read: begin again")
            is_gzip = file.path.lower().endswith(".gz")
            stream = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            for number, (row, location) in enumerate(_READERS[file.format](stream, file.path, columns)):
                if number % 256 == 0:
                    on_progress(raw.tell())
                yield {name: require_text(row[name], name, location) for name in columns} | {"location": location}
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file.path} cannot be read: {error_reason(error)}") from error


def require_text(value: object, name: str, location: str) -> str:
    """A value that is a text and not empty.

    Args:
        value: of a row.
        name: of its column.
        location: of the row.

    Raises:
        InputError: the value is no such text.
    """
    if value is None:
        raise InputError(f"{location} has no {name} (null): leave the row out, or write a {name}")
    if not isinstance(value, str):
        raise InputError(f"{location}: its {name} is {short_repr(repr(value))}, where a text is wanted")
    if not value.strip():
        raise InputError(f"{location} has no {name}, it is {short_repr(value)}: leave it out, or write a {name}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{location}: its {name} holds half of a surrogate pair, {value[error.start]!r}, which is no character"
        ) from error
    return value


def _read_pairs(stream: BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[LocatedRow]:
    """The lines of a TSV file without a header."""
    for line, location in read_lines(stream, name):
        line = strip_end(line)
        values = line.split("\t")
        if len(values) != 2:
            tabs = "no tab" if len(values) == 1 else f"{len(values) - 1} tabs"
            raise InputError(f"{location} has {tabs}: {short_repr(line)}. A line is a source, one tab and a target")
        yield dict(zip(columns, values, strict=True)), location


def _read_text(stream: BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[LocatedRow]:
    """The whole file as one text."""
    (column,) = columns
    yield {column: decode_utf8(stream.read(), name).removeprefix("\ufeff")}, name


_READERS = {"tsv": _read_pairs, "jsonl": read_jsonl, "parquet": read_parquet, "text": _read_text}
