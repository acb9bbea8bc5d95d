"""The built-in data: Python's own documentation, and scikit-learn's handwritten digits."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from regard.errors import import_optional
from regard.table_readers import Row
from regard.training.data.split import TrainingData, iterable_dataset

DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TOPICS_STRIDE, DIGITS_STRIDE = 10, 5
"""One of this many rows is an eval row."""
NUM_DIGIT_SHARDS = 12


def topics() -> TrainingData:
    """Python's documentation, as ``help()`` shows it: one text for each topic, by name; every tenth is an eval row."""
    names = sorted(_topics())
    eval_names = names[::TOPICS_STRIDE]
    train_names = [name for name in names if name not in eval_names]
    fingerprint = hashlib.blake2b(digest_size=16)
    for name in names:
        fingerprint.update(f"{name}\n{_topics()[name]}\n".encode())
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "fingerprint": fingerprint.hexdigest(),
        "split": "eval rows: of each 10 topics by name, the first",
    }
    train = iterable_dataset(_topic_rows, shards=train_names)
    return TrainingData("topics", train, list(_topic_rows(eval_names)), len(train_names), facts)


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics as all_topics

    return all_topics


def _topic_rows(shards: list[str]) -> Iterator[Row]:
    for name in shards:
        yield {"text": _topics()[name], "location": f"topic {name!r} of Python's documentation"}


def digits() -> TrainingData:
    """1,797 handwritten digits of 8 x 8 pixels, and their names; of each digit every fifth is an eval row.

    Raises:
        InputError: scikit-learn is not installed.
    """
    sklearn = import_optional("sklearn", "train")
    pixels, labels = _digits()
    is_eval = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        is_eval[np.flatnonzero(labels == digit)[::DIGITS_STRIDE]] = True
    fingerprint = hashlib.blake2b(pixels.tobytes() + labels.tobytes(), digest_size=16)
    facts: dict[str, Any] = {
        "scikit-learn": sklearn.__version__,
        "fingerprint": fingerprint.hexdigest(),
        "split": "eval rows: of each digit, of 5 images the first",
    }
    shards = [tuple(part.tolist()) for part in np.array_split(np.flatnonzero(~is_eval), NUM_DIGIT_SHARDS)]
    train = iterable_dataset(_digit_rows, shards=shards)
    eval_rows = list(_digit_rows([tuple(np.flatnonzero(is_eval).tolist())]))
    return TrainingData("digits", train, eval_rows, int((~is_eval).sum()), facts)


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    bunch = import_optional("sklearn.datasets", "train").load_digits()
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)


def _digit_rows(shards: list[tuple[int, ...]]) -> Iterator[Row]:
    pixels, labels = _digits()
    for shard in shards:
        for index in shard:
            yield {
                "image": pixels[index].copy(),
                "text": DIGIT_NAMES[labels[index]],
                "location": f"digits, row {index + 1}",
            }
