"""The texts of a file, one at a time."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import InputError, needed, quoted

__all__ = ["SUFFIXES", "Texts"]

SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
BLOCK = 2**20


@dataclass(frozen=True)
class Texts:
    """The texts of a file, read one at a time; nothing is left out, so that the n-th text is the n-th line or row.

    Args:
        path: ``.txt`` with a text on each line, ``.jsonl`` with an object on each line, ``.csv`` or ``.tsv`` with a
            header, ``.parquet``; ``-`` is standard input, a text on each line.
        column: where the text stands, in a file that has columns; ``text`` by default.

    Raises:
        InputError: another kind of file; a column of a file without columns.
    """

    path: str
    column: str | None = None

    def __post_init__(self) -> None:
        if self.path != "-" and self.suffix not in SUFFIXES:
            raise InputError(f"{self.path}: texts are read from {', '.join(SUFFIXES)}, or from - for standard input")
        if self.column is not None and self._has_lines:
            raise InputError(f"--column {self.column}: {self.name} has a text on each line, and no columns")

    @property
    def suffix(self) -> str:
        """Of the file's name, which says how it is read."""
        return Path(self.path).suffix.lower()

    @property
    def name(self) -> str:
        """As messages call it."""
        return "standard input" if self.path == "-" else self.path

    @property
    def _has_lines(self) -> bool:
        return self.path == "-" or self.suffix == ".txt"

    @property
    def _wanted(self) -> str:
        return "text" if self.column is None else self.column

    def where(self, place: int) -> str:
        """How to find a text in the file.

        Args:
            place: which text it is, from 0.
        """
        return f"{self.name}, {'line' if self._has_lines or self.suffix == '.jsonl' else 'row'} {place + 1}"

    def __iter__(self) -> Iterator[str]:
        """Every text.

        Raises:
            InputError: the file cannot be read, or something in it is no text; the message says in which line or row.
        """
        read = {".jsonl": self._objects, ".csv": self._rows, ".tsv": self._rows, ".parquet": self._table}
        try:
            yield from read.get(self.suffix, self._lines)() if self.path != "-" else self._lines()
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror or error}") from error

    def count(self) -> int:
        """How many texts there are, without looking into them where that can be told.

        Raises:
            InputError: as when they are read; standard input, which can be read only once.
        """
        if self.path == "-":
            raise InputError("standard input can be read only once, and by one process: shards need a file")
        try:
            if self.suffix == ".parquet":
                return int(self._open_table().metadata.num_rows)
            if self._has_lines or self.suffix == ".jsonl":
                with open(self.path, "rb") as stream:
                    return _count_lines(stream)
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror or error}") from error
        return sum(1 for _ in self)

    def _lines(self) -> Iterator[str]:
        with nullcontext(sys.stdin.buffer) if self.path == "-" else open(self.path, "rb") as stream:
            for number, line in enumerate(stream):
                try:
                    text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{self.where(number)}: byte 0x{line[error.start]:02x} is not UTF-8. Save the file as UTF-8, "
                        "for example with: iconv -f latin1 -t utf-8"
                    ) from error
                yield text.removeprefix("\ufeff") if number == 0 else text

    def _objects(self) -> Iterator[str]:
        for number, line in enumerate(self._lines()):
            where = self.where(number)
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is not JSON: {error}") from error
            if not isinstance(found, dict):
                raise InputError(f"{where} is not a JSON object: {quoted(line)}")
            self._need(list(found), where)
            yield self._text(found[self._wanted], where)

    def _rows(self) -> Iterator[str]:
        place, width, number = 0, None, -1
        for number, cells in enumerate(self._cells()):
            if width is None:
                self._need(cells, self.name)
                place, width = cells.index(self._wanted), len(cells)
                continue
            if len(cells) != width:
                raise InputError(f"{self.where(number - 1)} has {len(cells)} columns, the header {width}")
            yield cells[place]
        if number < 0:
            raise InputError(f"{self.name} is empty; a {self.suffix} file begins with a header")

    def _cells(self) -> Iterator[list[str]]:
        if self.suffix == ".tsv":
            yield from (line.split("\t") for line in self._lines())
            return
        with open(self.path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            try:
                yield from reader
            except UnicodeDecodeError as error:
                raise InputError(f"{self.name}, after line {reader.line_num}, is not UTF-8: {error.reason}") from error
            except csv.Error as error:
                raise InputError(f"{self.name}, line {reader.line_num}: {error}") from error

    def _open_table(self) -> Any:
        parquet, pyarrow = needed("pyarrow.parquet", "train"), needed("pyarrow", "train")
        try:
            return parquet.ParquetFile(self.path)
        except pyarrow.ArrowException as error:
            raise InputError(f"{self.name} is not a Parquet file: {error}") from error

    def _table(self) -> Iterator[str]:
        table = self._open_table()
        self._need(table.schema_arrow.names, self.name)
        pyarrow = needed("pyarrow", "train")
        number = 0
        try:
            for batch in table.iter_batches(batch_size=1024, columns=[self._wanted]):
                for value in batch.column(0).to_pylist():
                    yield self._text(value, self.where(number))
                    number += 1
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise InputError(f"{self.name} is damaged: {error}") from error

    def _need(self, columns: list[str], where: str) -> None:
        if self._wanted not in columns:
            there = ", ".join(map(repr, columns)) or "nothing"
            raise InputError(f"{where} has no {self._wanted!r}, it has {there}: name the texts' column with --column")

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise InputError(f"{where}: {self._wanted!r} is {quoted(repr(value))}, which is not a text")
        return value


def _count_lines(stream: BinaryIO) -> int:
    count, last = 0, b"\n"
    while block := stream.read(BLOCK):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")
