"""Images with captions: a folder of images and a CSV of their captions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import InputError, import_optional
from regard.files import error_reason
from regard.progress_bar import progress_bar
from regard.table_readers import Row, read_csv
from regard.training.data.data_files import fingerprint_files, require_file
from regard.training.data.readers import require_text
from regard.training.data.split import EVAL_STRIDE, TrainingData, scan, split

METADATA = "metadata.csv"
"""The table of a folder of images; `datasets` looks for the same name."""
FILE_COLUMNS = ("file_name", "file")
MAX_SHARDS = 192
"""This number divides evenly among 2, 3, 4, 6, 8, 12, 16, ... processes."""

Caption = tuple[str, str, str]
"""The path of an image, its caption, and the location of both in the table."""


def load(paths: Sequence[str | Path], eval_file: str | Path | None) -> TrainingData:
    """Images with captions; see `regard.training.data.images`."""
    name = " ".join(map(str, paths))
    folder, table = _folder_and_table(paths)
    captions = _captions(folder, table)
    data_facts = fingerprint_files(_all_paths(table, captions))
    eval_scan = None
    if eval_file is not None:
        is_folder = os.path.isdir(os.path.expanduser(eval_file))
        eval_folder, eval_table = _folder_and_table([eval_file] if is_folder else [folder, eval_file])
        eval_captions = _captions(eval_folder, eval_table)
        data_facts["eval_file"] = fingerprint_files(_all_paths(eval_table, eval_captions))
        eval_scan = scan(_read_all(eval_captions), "image", 1)
    train_scan = scan(_read_all(captions), "image", EVAL_STRIDE)
    starts = np.linspace(0, len(captions), min(MAX_SHARDS, len(captions)) + 1).astype(int)
    shards = [tuple(captions[start:stop]) for start, stop in pairwise(starts)]
    return split(name, train_scan, "image", shards, _read, data_facts, eval_scan=eval_scan)


def _folder_and_table(paths: Sequence[str | Path]) -> tuple[Path, Path]:
    """The folder and the table among some paths."""
    expanded = [Path(os.path.expanduser(path)) for path in paths]
    for path in expanded:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder")
    folders = [path for path in expanded if path.is_dir()]
    tables = [path for path in expanded if not path.is_dir()]
    name = " ".join(map(str, paths))
    if len(folders) != 1 or len(tables) > 1:
        raise InputError(f"{name}: captioning needs one folder of images and one CSV, in any order")
    if not tables and not (folders[0] / METADATA).exists():
        raise InputError(f"{name} has no {METADATA}: name the folder and a CSV with the columns file_name and text")
    table = require_file(tables[0] if tables else folders[0] / METADATA)
    if table.suffix.lower() != ".csv":
        raise InputError(f"{table}: captions are read from a .csv with the columns file_name and text")
    return folders[0], table


def _captions(folder: Path, table: Path) -> list[Caption]:
    """The rows of a table, each with an image that exists."""
    captions: list[Caption] = []
    name = str(table)
    try:
        with open(table, "rb") as stream:
            for row, location in read_csv(stream, name, ["text"]):
                file_column = next((column for column in FILE_COLUMNS if column in row), None)
                if file_column is None:
                    columns = ", ".join(map(repr, row))
                    raise InputError(f"{name} lacks 'file_name'; found: {columns}")
                image = folder / require_text(row[file_column], file_column, location)
                if not image.is_file():
                    raise InputError(f"{location}: there is no image {image}. Its path starts at the folder {folder}")
                captions.append((str(image), require_text(row["text"], "text", location), location))
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error_reason(error)}") from error
    if not captions:
        raise InputError(f"{name} has columns and no rows: each row is the file of an image and a text")
    return captions


def _all_paths(table: Path, captions: Sequence[Caption]) -> list[str]:
    """The table, and each image once."""
    return [str(table), *dict.fromkeys(path for path, _, _ in captions)]


def _read_all(captions: Sequence[Caption]) -> Iterator[Row]:
    """All rows, with a progress bar: an image that cannot be read is an error before training starts."""
    with progress_bar("reading the images", len(captions)) as on_progress:
        for index, row in enumerate(_read(captions)):
            yield row
            on_progress(index + 1)


def _read(captions: Sequence[Caption]) -> Iterator[Row]:
    for path, text, location in captions:
        yield {"image": _pixels(path, location), "text": text, "location": location}


def _pixels(path: str, location: str) -> np.ndarray:
    """The upright image, grey (height, width) or red, green and blue (height, width, 3), in uint8."""
    image, operations = import_optional("PIL.Image", "train"), import_optional("PIL.ImageOps", "train")
    try:
        with image.open(path) as opened:
            upright: Any = operations.exif_transpose(opened)
            if upright.mode.startswith("I;16"):
                return (np.asarray(upright) >> 8).astype(np.uint8)
            if upright.mode in ("I", "F"):
                raise InputError(f"{location}: {path} has 32 bits for each pixel: save it with 8 or 16")
            return np.array(upright.convert("L" if upright.mode in ("1", "L", "LA") else "RGB"))
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise InputError(f"{location}: the image {path} cannot be read: {error}") from error
