"""The data of a task: of files, or what is always there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from regard.training.data import builtin, dates, files, image_folder
from regard.training.data.progress import progress
from regard.training.data.readers import Row, read
from regard.training.data.split import EVERY, Data, beginning, divided, passed

__all__ = ["images", "pairs", "texts"]


def pairs(paths: Sequence[str | Path] = (), *, held_out: str | Path | None = None) -> Data:
    """Pairs of texts: rows of ``source``, ``target`` and ``where``.

    Without paths: dates in twelve languages and as ISO 8601, see `regard.training.data.dates`.

    Args:
        paths: files (TSV without a header, JSONL, Parquet; TSV and JSONL gzipped too) or patterns of them.
        held_out: such a file, to be judged by. By default every twentieth row is held out, at most `HELD_OUT`.

    Raises:
        InputError: what cannot be used, with file and line.
    """
    return _of_files(paths, held_out, "pairs", ("source", "target")) if _given(paths, held_out) else dates.data()


def texts(paths: Sequence[str | Path] = (), *, held_out: str | Path | None = None) -> Data:
    """Texts: rows of ``text`` and ``where``.

    Without paths: the topics of Python's own documentation.

    Args:
        paths: files or patterns of them: JSONL and Parquet with a column ``text``; any other file is one text.
        held_out: such a file, to be judged by. By default every twentieth text is held out, at most `HELD_OUT`; of a
            single one, its last twentieth.

    Raises:
        InputError: what cannot be used, with file and line.
    """
    return _of_files(paths, held_out, "texts", ("text",)) if _given(paths, held_out) else builtin.topics()


def images(paths: Sequence[str | Path] = (), *, held_out: str | Path | None = None) -> Data:
    """Pictures with what is said of them: rows of ``image`` (height, width[, 3]) in uint8, ``text`` and ``where``.

    Without paths: scikit-learn's handwritten digits, spelled.

    Args:
        paths: a folder of pictures and a CSV with the columns ``file_name`` (or ``file``) and ``text``, in any order;
            or a folder with such a ``metadata.csv`` in it.
        held_out: another CSV of pictures in that folder, or another folder with its ``metadata.csv``, to be judged by.
            By default every twentieth row is held out, at most `HELD_OUT`.

    Raises:
        InputError: what cannot be used, with file and line.
    """
    return image_folder.data(paths, held_out) if _given(paths, held_out) else builtin.digits()


def _given(paths: Sequence[str | Path], held_out: str | Path | None) -> bool:
    if isinstance(paths, str | Path):
        raise TypeError(f"paths is a list of paths, not the one {str(paths)!r}")
    if held_out is not None and not paths:
        raise ValueError(
            f"{str(held_out)!r} is to be held out of data that is not named; what is always there has a "
            "split of its own"
        )
    return bool(paths)


def _of_files(paths: Sequence[str | Path], held_out: str | Path | None, what: str, columns: tuple[str, ...]) -> Data:
    name = " ".join(map(str, paths))
    found = files.files(paths, what)
    others = files.files([held_out], what) if held_out is not None else []
    facts = files.facts([file.path for file in found])
    reader = partial(read, columns=columns)
    if others:
        facts["held_out"] = files.facts([file.path for file in others])
        judged = passed(_all(others, columns), columns[0], 1)
        rows = passed(_all(found, columns), columns[0], EVERY)
        return divided(name, rows, columns[0], found, reader, facts, others=judged)
    rows = passed(_all(found, columns), columns[0], EVERY)
    if what == "texts" and len(rows.keys) == 1:
        return beginning(name, rows.rows[0], found, reader, facts)
    return divided(name, rows, columns[0], found, reader, facts)


def _all(found: Sequence[files.File], columns: tuple[str, ...]) -> Iterator[Row]:
    """All rows of all files, with a progress bar."""
    before = 0
    with progress("reading the data", sum(file.size for file in found)) as tell:
        for file in found:
            yield from read(file, columns, lambda done, before=before: tell(before + done))  # type: ignore[misc]
            before += file.size
