"""Rows of text in files: TSV, JSONL, Parquet, and plain texts.

The readers are regard's own and not those of `datasets`, because an error has to name the line that is wrong.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase
from typing import Any

from regard.errors import InputError, needed, quoted
from regard.training.data.files import File

__all__ = ["Row", "filled", "lines", "read"]

Row = dict[str, Any]


def read(file: File, columns: Sequence[str], on_progress: Callable[[int], None] = lambda done: None) -> Iterator[Row]:
    """The rows of a file, one at a time.

    Args:
        file: to read.
        columns: that each row has.
        on_progress: is called with the number of bytes that are read.

    Yields:
        The columns, each a text that is not empty, and ``location``: the file and the line.

    Raises:
        InputError: what is not as it must be, with file and line.
    """
    try:
        with open(file.path, "rb") as raw:
            if os.fstat(raw.fileno()).st_size != file.size:
                raise InputError(f"{file.path} has changed since it was first read: begin again")
            for number, (values, where) in enumerate(_READERS[file.kind](raw, file.path, columns)):
                if number % 256 == 0:
                    on_progress(raw.tell())
                yield {name: filled(values[name], name, where) for name in columns} | {"location": where}
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file.path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def lines(raw: BufferedIOBase, name: str) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with its end, and where it stands.

    Raises:
        InputError: a line is not UTF-8.
    """
    offset = 0
    for number, line in enumerate(_unzipped(raw, name), 1):
        where = f"{name}, line {number}"
        text = _decoded(line, where, offset)
        offset += len(line)
        yield text.removeprefix("\ufeff") if number == 1 else text, where


def filled(value: object, name: str, where: str) -> str:
    """A value that is a text with something in it.

    Args:
        value: of a row.
        name: of its column.
        where: the row stands.

    Raises:
        InputError: it is not.
    """
    if value is None:
        raise InputError(f"{where} has no {name} (null): leave the row out, or write a {name}")
    if not isinstance(value, str):
        raise InputError(f"{where}: its {name} is {quoted(repr(value))}, where a text is wanted")
    if not value.strip():
        raise InputError(f"{where} has no {name}, it is {quoted(value)}: leave it out, or write a {name}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: its {name} holds half of a surrogate pair, {value[error.start]!r}, which is no character"
        ) from error
    return value


def _tsv(raw: BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[tuple[Row, str]]:
    for line, where in lines(raw, name):
        line = line.removesuffix("\n").removesuffix("\r")
        sides = line.split("\t")
        if len(sides) != 2:
            tabs = "no tab" if len(sides) == 1 else f"{len(sides) - 1} tabs"
            raise InputError(f"{where} has {tabs}: {quoted(line)}. A line is a source, one tab and a target")
        yield dict(zip(columns, sides, strict=True)), where


def _jsonl(raw: BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[tuple[Row, str]]:
    for line, where in lines(raw, name):
        try:
            values = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where} is no JSON: {error}. Each line is one object with {_named(columns)}") from error
        except RecursionError as error:
            raise InputError(f"{where} is nested too deeply. Each line is one object with {_named(columns)}") from error
        if not isinstance(values, dict):
            raise InputError(f"{where} is no JSON object: {quoted(line.strip())}. Each line is one object, {{...}}")
        _hold(columns, list(values), where)
        yield values, where


def _parquet(raw: BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[tuple[Row, str]]:
    pyarrow, parquet = needed("pyarrow", "train"), needed("pyarrow.parquet", "train")
    try:
        table = parquet.ParquetFile(raw)
        _hold(columns, table.schema_arrow.names, name)
        number = 0
        for batch in table.iter_batches(batch_size=1024, columns=list(columns)):
            for values in batch.to_pylist():
                number += 1
                yield values, f"{name}, row {number}"
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read as Parquet: {error}") from error


def _whole(raw: BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[tuple[Row, str]]:
    (column,) = columns
    yield {column: _decoded(_unzipped(raw, name).read(), name).removeprefix("\ufeff")}, name


_READERS = {"tsv": _tsv, "jsonl": _jsonl, "parquet": _parquet, "text": _whole}


def _decoded(line: bytes, where: str, offset: int = 0) -> str:
    """UTF-8 as text; an error names the position in the file."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: byte 0x{line[error.start]:02x} at position {offset + error.start} of the file is not UTF-8. "
            "Save it as UTF-8, for example with: iconv -f latin1 -t utf-8"
        ) from error


def _unzipped(raw: BufferedIOBase, name: str) -> BufferedIOBase:
    return gzip.GzipFile(fileobj=raw) if name.lower().endswith(".gz") else raw


def _hold(columns: Sequence[str], found: Sequence[str], where: str) -> None:
    missing = [name for name in columns if name not in found]
    if missing:
        raise InputError(f"{where} lacks {_named(missing)}; found: {_named(found) if found else 'nothing'}")


def _named(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))
