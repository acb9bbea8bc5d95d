"""A folder of pictures, and a table of what is said of them."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import InputError, needed
from regard.training.data.files import existing, facts
from regard.training.data.progress import progress
from regard.training.data.readers import Row, filled, lines
from regard.training.data.split import EVERY, Data, divided, passed

__all__ = ["data"]

TABLE = "metadata.csv"
"""Where `datasets` looks for the table of a folder of pictures, too."""
FILE_COLUMNS = ("file_name", "file")
SHARDS = 192
"""Parts of the rows at most; so many divide evenly among 2, 3, 4, 6, 8, 12, 16, ... processes."""

Said = tuple[str, str, str]
"""The path of a picture, what is said of it, and where that stands."""


def data(paths: Sequence[str | Path], held_out: str | Path | None) -> Data:
    """Pictures with texts; see `regard.training.data.images`."""
    name = " ".join(map(str, paths))
    folder, table = _both(paths)
    said = _said(folder, table)
    found = facts(_files(table, said))
    judged = None
    if held_out is not None:
        is_folder = os.path.isdir(os.path.expanduser(held_out))
        others_folder, others_table = _both([held_out] if is_folder else [folder, held_out])
        others = _said(others_folder, others_table)
        found["held_out"] = facts(_files(others_table, others))
        judged = passed(_all(others), "image", 1)
    rows = passed(_all(said), "image", EVERY)
    starts = np.linspace(0, len(said), min(SHARDS, len(said)) + 1).astype(int)
    shards = [tuple(said[start:stop]) for start, stop in pairwise(starts)]
    return divided(name, rows, "image", shards, _read, found, others=judged)


def _both(given: Sequence[str | Path]) -> tuple[Path, Path]:
    """The folder and the table among some paths."""
    paths = [Path(os.path.expanduser(path)) for path in given]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder")
    folders = [path for path in paths if path.is_dir()]
    tables = [path for path in paths if not path.is_dir()]
    said = " ".join(map(str, given))
    if len(folders) != 1 or len(tables) > 1:
        raise InputError(f"{said}: captions are learned from one folder of pictures and one CSV, in any order")
    if not tables and not (folders[0] / TABLE).exists():
        raise InputError(f"{said} has no {TABLE}: name a CSV with the columns file_name and text beside the folder")
    table = existing(tables[0] if tables else folders[0] / TABLE)
    if table.suffix.lower() != ".csv":
        raise InputError(f"{table}: what is said of pictures is read from a .csv with the columns file_name and text")
    return folders[0], table


def _said(folder: Path, table: Path) -> list[Said]:
    """The rows of a table, each with a picture that is there."""
    found: list[Said] = []
    name = str(table)
    with open(table, "rb") as raw:
        reader = csv.reader((line for line, _ in lines(raw, name)), strict=True)
        try:
            header = next(reader)
            file_column = next((column for column in FILE_COLUMNS if column in header), None)
            if file_column is None or "text" not in header:
                columns = ", ".join(map(repr, header))
                raise InputError(f"{name} needs the columns 'file_name' and 'text'; found: {columns}")
            line = reader.line_num + 1
            for values in reader:
                where = f"{name}, line {line}"
                line = reader.line_num + 1
                if len(values) != len(header):
                    raise InputError(
                        f"{where} has {len(values)} values for {len(header)} columns: "
                        'put a text with commas in "quotation marks"'
                    )
                row = dict(zip(header, values, strict=True))
                picture = folder / filled(row[file_column], file_column, where)
                if not picture.is_file():
                    raise InputError(f"{where}: there is no picture {picture}. Its path is from the folder {folder}")
                found.append((str(picture), filled(row["text"], "text", where), where))
        except csv.Error as error:
            raise InputError(f"{name}, line {reader.line_num} is no CSV: {error}") from error
        except OSError as error:
            raise InputError(f"{name} cannot be read: {error.strerror or error}") from error
    if not found:
        raise InputError(f"{name} has columns and no rows: each is a picture's file and a text")
    return found


def _files(table: Path, said: Sequence[Said]) -> list[str]:
    """The table, and each picture once."""
    return [str(table), *dict.fromkeys(path for path, _, _ in said)]


def _all(said: Sequence[Said]) -> Iterator[Row]:
    """All rows, with a progress bar; so a picture that cannot be read shows before training begins."""
    with progress("reading the pictures", len(said)) as tell:
        for number, row in enumerate(_read(said)):
            yield row
            tell(number + 1)


def _read(said: Sequence[Said]) -> Iterator[Row]:
    for path, text, where in said:
        yield {"image": _pixels(path, where), "text": text, "where": where}


def _pixels(path: str, where: str) -> np.ndarray:
    """A picture the right way up, grey (height, width) or red, green and blue (height, width, 3), in uint8."""
    image, operations = needed("PIL.Image", "train"), needed("PIL.ImageOps", "train")
    try:
        with image.open(path) as opened:
            upright: Any = operations.exif_transpose(opened)
            if upright.mode.startswith("I;16"):
                return (np.asarray(upright) >> 8).astype(np.uint8)
            if upright.mode in ("I", "F"):
                raise InputError(f"{where}: {path} has 32 bits for each pixel: save it with 8 or 16")
            return np.array(upright.convert("L" if upright.mode in ("1", "L", "LA") else "RGB"))
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise InputError(f"{where}: the picture {path} cannot be read: {error}") from error
