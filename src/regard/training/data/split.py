"""Training data, split into the rows to train on and the eval rows."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import InputError, import_optional
from regard.notebook import import_tqdm
from regard.table_readers import Row

if TYPE_CHECKING:
    import datasets

MAX_EVAL_ROWS = 2_000
MAX_EVAL_ELEMENTS = 1 << 29
"""Characters, or numbers of images, of all eval rows: they are kept in memory."""
EVAL_STRIDE = 20
"""One of this many rows is an eval row; one of more, where that would be too many."""


@dataclass(frozen=True)
class TrainingData:
    """Rows to train on, and others to evaluate on."""

    name: str
    """The paths that were given, or the name of the built-in data."""
    train: datasets.IterableDataset
    """Rows in their order, never shuffled, read from their files one after the other."""
    eval_rows: list[Row]
    """Rows whose source (text, image) is nowhere in ``train``; at most `MAX_EVAL_ROWS`."""
    num_rows: int
    """The number of rows of ``train``."""
    facts: dict[str, Any]
    """What identifies the data, as JSON: files with sizes and fingerprint, or versions; the rule of the split."""


@dataclass(frozen=True)
class RowScan:
    """The result of one pass over all rows."""

    rows: list[Row]
    """Some of them, evenly spread."""
    stride: int
    """One of this many rows is among ``rows``."""
    keys: array[int]
    """A hash of the content of each row, of 64 bits."""


def scan(
    rows: Iterable[Row],
    column: str,
    stride: int,
    *,
    max_rows: int = MAX_EVAL_ROWS,
    max_elements: int = MAX_EVAL_ELEMENTS,
) -> RowScan:
    """Read all rows once, without knowing their number.

    Args:
        rows: in their order.
        column: the column that identifies a row: the source, the text, the image.
        stride: keep the first of each this many rows; fewer where these would be too many.
        max_rows: the most rows to keep.
        max_elements: the most characters, or numbers of images, to keep; one row is kept of any size.
    """
    keys, sampled = array("Q"), list[Row]()
    size = 0
    for index, row in enumerate(rows):
        keys.append(_content_key(row[column]))
        if index % stride == 0:
            sampled.append(row)
            size += _num_elements(row[column])
            while len(sampled) > max_rows or (size > max_elements and len(sampled) > 1):
                del sampled[1::2]
                stride *= 2
                size = sum(_num_elements(row[column]) for row in sampled)
    return RowScan(sampled, stride, keys)


def split(
    name: str,
    train_scan: RowScan,
    column: str,
    shards: Sequence[Any],
    read: Callable[[Any], Iterator[Row]],
    facts: dict[str, Any],
    *,
    eval_scan: RowScan | None = None,
) -> TrainingData:
    """Select the eval rows; train on the rows whose content differs from all of them.

    Args:
        name: of the data.
        train_scan: of all rows.
        column: the column that identifies a row.
        shards: parts of the data that can be read alone.
        read: the rows of a shard.
        facts: of the files.
        eval_scan: of an eval file, which has the eval rows instead.

    Raises:
        InputError: no row is left to train on.
    """
    if not train_scan.keys:
        raise InputError(f"{name} has no rows")
    if eval_scan is None:
        eval_keys, eval_rows = {_content_key(row[column]) for row in train_scan.rows}, train_scan.rows
        rule = f"eval rows: of each {train_scan.stride} rows the first"
    else:
        eval_keys, eval_rows = set(eval_scan.keys), eval_scan.rows
        rule = f"eval rows: of each {eval_scan.stride} rows of the eval file the first"
    num_rows = sum(key not in eval_keys for key in train_scan.keys)
    if not num_rows:
        count = len(train_scan.keys)
        raise InputError(
            f"{name}: nothing is left to train on. Of {count} row{'s' * (count != 1)} at least one is an eval row, and "
            f"a row with the {column} of an eval row is not trained on. Give more rows, or eval rows in another file"
        )
    rule += f"; no row with the same {column} is trained on"
    facts = {**facts, "rows_read": len(train_scan.keys), "split": rule}
    train = iterable_dataset(_train_rows, shards=shards, read=read, column=column, eval_keys=frozenset(eval_keys))
    return TrainingData(name, train, eval_rows, num_rows, facts)


def split_single_text(
    name: str, row: Row, shards: Sequence[Any], read: Callable[[Any], Iterator[Row]], facts: Row
) -> TrainingData:
    """Train on one text without its last twentieth, which is the eval row.

    Raises:
        InputError: the text has fewer than twenty characters.
    """
    text = row["text"]
    stop = len(text) * (EVAL_STRIDE - 1) // EVAL_STRIDE
    if len(text) < EVAL_STRIDE:
        raise InputError(
            f"{name} is one text of {len(text)} characters: an eval row needs at least {EVAL_STRIDE}. Give more"
        )
    facts = {**facts, "rows_read": 1, "split": f"eval row: the one text from its character {stop} on"}
    train = iterable_dataset(_truncated_rows, shards=shards, read=read, stop=stop)
    return TrainingData(name, train, [{**row, "text": text[stop:]}], 1, facts)


def iterable_dataset(
    rows: Callable[..., Iterator[Row]], *, shards: Sequence[Any], **fixed: Any
) -> datasets.IterableDataset:
    """Rows as a dataset of `datasets`, which can divide the shards among processes.

    Args:
        rows: makes rows of shards.
        shards: parts of the data.
        fixed: other arguments of ``rows``, none of them a list: `datasets` would treat it as shards.

    Raises:
        InputError: `datasets` is not installed, or has no folder to write to.
    """
    import_tqdm()
    library = import_optional("datasets", "train")
    try:
        dataset: datasets.IterableDataset = library.IterableDataset.from_generator(
            rows, gen_kwargs={"shards": list(shards), **fixed}
        )
    except OSError as error:  # datasets writes a lock there, and nothing else
        raise InputError(
            f"the library datasets cannot write to its folder {library.config.HF_DATASETS_CACHE}: {error.strerror}. "
            "Name another in the environment variable HF_DATASETS_CACHE"
        ) from error
    return dataset


def _train_rows(
    shards: list[Any], read: Callable[[Any], Iterator[Row]], column: str, eval_keys: frozenset[int]
) -> Iterator[Row]:
    for shard in shards:
        for row in read(shard):
            if _content_key(row[column]) not in eval_keys:
                yield row


def _truncated_rows(shards: list[Any], read: Callable[[Any], Iterator[Row]], stop: int) -> Iterator[Row]:
    for shard in shards:
        for row in read(shard):
            yield {**row, "text": row["text"][:stop]}


def _content_key(value: str | np.ndarray) -> int:
    """64 bits of blake2b: among a million different rows, two have the same with a chance of 3 in 100 million."""
    content = value.encode() if isinstance(value, str) else repr(value.shape).encode() + value.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _num_elements(value: str | np.ndarray) -> int:
    return len(value) if isinstance(value, str) else value.size
