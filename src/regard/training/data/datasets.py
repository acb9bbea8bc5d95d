"""The data sets of the tasks: pairs, texts and images, of files or built in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from regard.progress_bar import progress_bar
from regard.table_readers import Row
from regard.training.data import builtin, data_files, dates, image_folder
from regard.training.data.readers import read_rows
from regard.training.data.split import EVAL_STRIDE, TrainingData, scan, split, split_single_text


def pairs(paths: Sequence[str | Path] = (), *, eval_file: str | Path | None = None) -> TrainingData:
    """Pairs of texts: rows of ``source``, ``target`` and ``location``.

    Without paths: dates in twelve languages and as ISO 8601, see `regard.training.data.dates`.

    Args:
        paths: files (TSV without a header, JSONL, Parquet; TSV and JSONL gzipped too) or glob patterns.
        eval_file: a file with the eval rows. By default every twentieth row is one, at most `MAX_EVAL_ROWS`.

    Raises:
        InputError: a row or a file that cannot be used, with file and line.
    """
    if not _has_paths(paths, eval_file):
        return dates.dates()
    return _read_files(paths, eval_file, "pairs", ("source", "target"))


def texts(paths: Sequence[str | Path] = (), *, eval_file: str | Path | None = None) -> TrainingData:
    """Texts: rows of ``text`` and ``location``.

    Without paths: the topics of Python's own documentation.

    Args:
        paths: files or glob patterns: JSONL and Parquet with a column ``text``; any other file is one text.
        eval_file: a file with the eval rows. By default every twentieth text is one, at most `MAX_EVAL_ROWS`; of a
            single text, the last twentieth.

    Raises:
        InputError: a row or a file that cannot be used, with file and line.
    """
    return _read_files(paths, eval_file, "texts", ("text",)) if _has_paths(paths, eval_file) else builtin.topics()


def images(paths: Sequence[str | Path] = (), *, eval_file: str | Path | None = None) -> TrainingData:
    """Images with captions: rows of ``image`` (height, width[, 3]) in uint8, ``text`` and ``location``.

    Without paths: scikit-learn's handwritten digits, spelled.

    Args:
        paths: a folder of images and a CSV with the columns ``file_name`` (or ``file``) and ``text``, in any order;
            or a folder that has such a ``metadata.csv``.
        eval_file: another CSV of images in that folder, or another folder with its ``metadata.csv``, for the eval
            rows. By default every twentieth row is one, at most `MAX_EVAL_ROWS`.

    Raises:
        InputError: a row or a file that cannot be used, with file and line.
    """
    return image_folder.load(paths, eval_file) if _has_paths(paths, eval_file) else builtin.digits()


def _has_paths(paths: Sequence[str | Path], eval_file: str | Path | None) -> bool:
    if isinstance(paths, str | Path):
        raise TypeError(f"paths is a list of paths, not the one {str(paths)!r}")
    if eval_file is not None and not paths:
        raise ValueError(
            f"eval_file {str(eval_file)!r} needs paths: the built-in data has its own split into training and eval rows"
        )
    return bool(paths)


def _read_files(
    paths: Sequence[str | Path], eval_file: str | Path | None, content: str, columns: tuple[str, ...]
) -> TrainingData:
    name = " ".join(map(str, paths))
    train_files = data_files.find_files(paths, content)
    eval_files = data_files.find_files([eval_file], content) if eval_file is not None else []
    facts = data_files.fingerprint_files([file.path for file in train_files])
    reader = partial(read_rows, columns=columns)
    if eval_files:
        facts["eval_file"] = data_files.fingerprint_files([file.path for file in eval_files])
        eval_scan = scan(_read_all(eval_files, columns), columns[0], 1)
        train_scan = scan(_read_all(train_files, columns), columns[0], EVAL_STRIDE)
        return split(name, train_scan, columns[0], train_files, reader, facts, eval_scan=eval_scan)
    train_scan = scan(_read_all(train_files, columns), columns[0], EVAL_STRIDE)
    if content == "texts" and len(train_scan.keys) == 1:
        return split_single_text(name, train_scan.rows[0], train_files, reader, facts)
    return split(name, train_scan, columns[0], train_files, reader, facts)


def _read_all(row_files: Sequence[data_files.DataFile], columns: tuple[str, ...]) -> Iterator[Row]:
    """All rows of all files, with a progress bar."""
    before = 0
    with progress_bar("reading the data", sum(file.size for file in row_files)) as on_progress:
        for file in row_files:
            yield from read_rows(file, columns, lambda done, before=before: on_progress(before + done))  # type: ignore[misc]
            before += file.size
