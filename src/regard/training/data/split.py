"""What is trained on, and what is held out of it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import InputError, needed
from regard.training.data.readers import Row

if TYPE_CHECKING:
    import datasets

__all__ = ["HELD_OUT", "Data", "Passed", "beginning", "divided", "passed", "streamed"]

HELD_OUT = 2_000
"""Rows that are held out, at most."""
HELD_SIZE = 1 << 29
"""Letters, or numbers of pictures, in them, at most: they are kept in memory."""
EVERY = 20
"""Of so many rows one is held out; of more, where that would be too many."""


@dataclass(frozen=True)
class Data:
    """Examples to learn from, and others to be judged by."""

    name: str
    """What it is called: the paths as they were given, or the name of what is always there."""
    train: datasets.IterableDataset
    """Rows in their order, never shuffled; read from their files as they are asked for."""
    held_out: list[Row]
    """Rows whose source (text, picture) stands nowhere in ``train``; at most `HELD_OUT`."""
    rows: int
    """How many ``train`` has."""
    facts: dict[str, Any]
    """How it can be had again, as JSON: files with sizes and fingerprint, or versions; the rule of the split."""


@dataclass(frozen=True)
class Passed:
    """What one pass over all rows leaves."""

    rows: list[Row]
    """Some of them, evenly spread."""
    step: int
    """Of so many rows, one is among these."""
    keys: array[int]
    """A number for the content of each row, of 64 bits."""


def passed(rows: Iterable[Row], column: str, step: int) -> Passed:
    """Go over all rows once; how many there will be is not known.

    Args:
        rows: in their order.
        column: what makes two rows the same: the source, the text, the picture.
        step: of so many rows keep one, the first at first; fewer where these would be too many.
    """
    keys, kept = array("Q"), list[Row]()
    size = 0
    for number, row in enumerate(rows):
        keys.append(_key(row[column]))
        if number % step == 0:
            kept.append(row)
            size += _size(row[column])
            while len(kept) > HELD_OUT or (size > HELD_SIZE and len(kept) > 1):
                del kept[1::2]
                step *= 2
                size = sum(_size(row[column]) for row in kept)
    return Passed(kept, step, keys)


def divided(
    name: str,
    rows: Passed,
    column: str,
    shards: Sequence[Any],
    read: Callable[[Any], Iterator[Row]],
    facts: dict[str, Any],
    *,
    others: Passed | None = None,
) -> Data:
    """Hold some rows out, and stream those that are not the same as any of them.

    Args:
        name: of the data.
        rows: all of them, passed over.
        column: what makes two rows the same.
        shards: parts of the data that can be read alone.
        read: the rows of a shard.
        facts: of the files.
        others: rows of another file that are held out, instead of some of these.

    Raises:
        InputError: nothing is left to train on.
    """
    if not rows.keys:
        raise InputError(f"{name} has no rows")
    if others is None:
        held, held_out = {_key(row[column]) for row in rows.rows}, rows.rows
        split = f"held out: of each {rows.step} rows the first"
    else:
        held, held_out = set(others.keys), others.rows
        split = f"held out: the rows of the other file, judged by: of each {others.step} the first"
    left = sum(key not in held for key in rows.keys)
    if not left:
        count = len(rows.keys)
        raise InputError(
            f"{name}: nothing is left to train on. Of {count} row{'s' * (count != 1)} at least one is held out, and "
            f"what has the same {column} as one held out is not trained on. Give more, or hold out rows of another file"
        )
    facts = {**facts, "rows_read": len(rows.keys), "split": f"{split}; none with the same {column} is trained on"}
    train = streamed(_others, shards=shards, read=read, column=column, held=frozenset(held))
    return Data(name, train, held_out, left, facts)


def beginning(name: str, row: Row, shards: Sequence[Any], read: Callable[[Any], Iterator[Row]], facts: Row) -> Data:
    """Of one text, hold the last twentieth out.

    Raises:
        InputError: it has not even twenty letters.
    """
    text = row["text"]
    until = len(text) * (EVERY - 1) // EVERY
    if len(text) < EVERY:
        raise InputError(f"{name} is one text of {len(text)} letters: it takes {EVERY} to hold one out. Give more")
    facts = {**facts, "rows_read": 1, "split": f"held out: the one text from its letter {until} on"}
    train = streamed(_cut, shards=shards, read=read, until=until)
    return Data(name, train, [{**row, "text": text[until:]}], 1, facts)


def streamed(rows: Callable[..., Iterator[Row]], *, shards: Sequence[Any], **fixed: Any) -> datasets.IterableDataset:
    """Rows as a dataset of `datasets`, which can divide the shards among processes.

    Args:
        rows: makes them of the shards.
        shards: parts of the data.
        fixed: other arguments of ``rows``, none of them a list: `datasets` would take it for shards.

    Raises:
        InputError: `datasets` is not installed, or has no folder to write to.
    """
    library = needed("datasets", "train")
    try:
        dataset: datasets.IterableDataset = library.IterableDataset.from_generator(
            rows, gen_kwargs={"shards": list(shards), **fixed}
        )
    except OSError as error:  # it keeps a lock there, although nothing else
        raise InputError(
            f"the library datasets cannot write to its folder {library.config.HF_DATASETS_CACHE}: {error.strerror}. "
            "Name another in the environment variable HF_DATASETS_CACHE"
        ) from error
    return dataset


def _others(
    shards: list[Any], read: Callable[[Any], Iterator[Row]], column: str, held: frozenset[int]
) -> Iterator[Row]:
    for shard in shards:
        for row in read(shard):
            if _key(row[column]) not in held:
                yield row


def _cut(shards: list[Any], read: Callable[[Any], Iterator[Row]], until: int) -> Iterator[Row]:
    for shard in shards:
        for row in read(shard):
            yield {**row, "text": row["text"][:until]}


def _key(value: str | np.ndarray) -> int:
    """64 bits of blake2b: among a million rows, two that differ share them with a chance of 3 in 100 million."""
    content = value.encode() if isinstance(value, str) else repr(value.shape).encode() + value.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _size(value: str | np.ndarray) -> int:
    return len(value) if isinstance(value, str) else value.size
