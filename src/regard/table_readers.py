"""Rows of text files, one at a time: lines, JSONL, CSV, TSV and Parquet. Every error names the file and the line.

Each reader yields rows with their location, such as ``corpus.jsonl, line 7``, and raises `InputError` for content that
it cannot read. The readers are regard's own and not those of `datasets`, whose errors do not name the line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedIOBase, StringIO
from itertools import chain
from typing import Any

from regard.errors import InputError, import_optional, short_repr

Row = dict[str, Any]
LocatedRow = tuple[Row, str]


class MissingColumnError(InputError):
    """A file or a line lacks a column."""


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with its end, and their locations."""
    offset = 0
    for number, line in enumerate(stream, 1):
        location = f"{name}, line {number}"
        text = decode_utf8(line, location, offset)
        offset += len(line)
        yield text.removeprefix("\ufeff") if number == 1 else text, location


def read_jsonl(stream: Iterable[bytes], name: str, columns: Sequence[str]) -> Iterator[LocatedRow]:
    """The objects of a file with one JSON object on each line."""
    for line, location in read_lines(stream, name):
        try:
            row = json.loads(line)
        except ValueError as error:
            hint = f"Each line is one object with {_quoted(columns)}"
            raise InputError(f"{location} is not JSON: {error}. {hint}") from error
        except RecursionError as error:
            raise InputError(f"{location} is nested too deeply") from error
        if not isinstance(row, dict):
            raise InputError(
                f"{location} is not a JSON object: {short_repr(line.strip())}. Each line is one object, {{...}}"
            )
        _require_columns(columns, list(row), location)
        yield row, location


def read_tsv(stream: Iterable[bytes], name: str, columns: Sequence[str]) -> Iterator[LocatedRow]:
    """The rows of a TSV file with a header; a value cannot contain a tab or a line break."""
    lines = ((strip_end(line).split("\t"), location) for line, location in read_lines(stream, name))
    yield from _with_header(lines, name, columns)


def read_csv(stream: Iterable[bytes], name: str, columns: Sequence[str]) -> Iterator[LocatedRow]:
    """The rows of a CSV file with a header."""
    hint = ': put a text with commas in "quotation marks"'
    yield from _with_header(_split_csv(stream, name), name, columns, hint)


def _split_csv(stream: Iterable[bytes], name: str) -> Iterator[tuple[list[str], str]]:
    # A carriage return without a line feed ends a line of CSV as well.
    lines = chain.from_iterable(StringIO(line, newline="") for line, _ in read_lines(stream, name))
    reader = csv.reader(lines, strict=True)
    try:
        first = 1
        for values in reader:
            yield values, f"{name}, line {first}"
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num} is not CSV: {error}") from error


def _with_header(
    lines: Iterable[tuple[list[str], str]], name: str, columns: Sequence[str], hint: str = ""
) -> Iterator[LocatedRow]:
    header: list[str] | None = None
    for values, location in lines:
        if header is None:
            header = values
            _require_columns(columns, header, name)
        elif len(values) != len(header):
            raise InputError(f"{location} has {len(values)} values for {len(header)} columns{hint}")
        else:
            yield dict(zip(header, values, strict=True)), location
    if header is None:
        raise InputError(f"{name} is empty; it should begin with a header")


def open_parquet(source: str | BufferedIOBase, name: str) -> Any:
    """A Parquet file."""
    parquet, pyarrow = import_optional("pyarrow.parquet", "train"), import_optional("pyarrow", "train")
    try:
        return parquet.ParquetFile(source)
    except pyarrow.ArrowException as error:
        raise InputError(f"{name} cannot be read as Parquet: {error}") from error


def read_parquet(stream: BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[LocatedRow]:
    """The rows of a Parquet file, without its other columns."""
    table = open_parquet(stream, name)
    _require_columns(columns, table.schema_arrow.names, name)
    number = 0
    try:
        for batch in table.iter_batches(batch_size=1024, columns=list(columns)):
            for row in batch.to_pylist():
                number += 1
                yield row, f"{name}, row {number}"
    except (import_optional("pyarrow", "train").ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read as Parquet: {error}") from error


def decode_utf8(data: bytes, location: str, offset: int = 0) -> str:
    """Bytes as text; the error names their location and the position in the file, from the offset of the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location}: byte 0x{data[error.start]:02x} at position {offset + error.start} of the file is not UTF-8. "
            "Save it as UTF-8, for example with: iconv -f latin1 -t utf-8"
        ) from error


def strip_end(line: str) -> str:
    """A line without its line break."""
    return line.removesuffix("\n").removesuffix("\r")


def _require_columns(columns: Sequence[str], found: Sequence[str], location: str) -> None:
    missing = [name for name in columns if name not in found]
    if missing:
        raise MissingColumnError(
            f"{location} lacks {_quoted(missing)}; found: {_quoted(found) if found else 'nothing'}"
        )


def _quoted(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))
