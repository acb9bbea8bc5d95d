"""What is always there: Python's own documentation, and scikit-learn's handwritten digits."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from regard.errors import needed
from regard.training.data.readers import Row
from regard.training.data.split import Data, streamed

__all__ = ["SPELLED", "digits", "topics"]

SPELLED = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
EVERY_TOPIC, EVERY_DIGIT = 10, 5
"""Of so many, one is held out."""
PARTS = 12
"""Shards of the digits."""


def topics() -> Data:
    """Python's documentation, as ``help()`` shows it: one text for each topic, by name, every tenth held out."""
    names = sorted(_topics())
    held = names[::EVERY_TOPIC]
    names = [name for name in names if name not in held]
    every = hashlib.blake2b(digest_size=16)
    for name in sorted(_topics()):
        every.update(f"{name}\n{_topics()[name]}\n".encode())
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "fingerprint": every.hexdigest(),
        "split": "held out: of each 10 topics by name, the first",
    }
    return Data("topics", streamed(_told, shards=names), list(_told(held)), len(names), facts)


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics as all_topics

    return all_topics


def _told(shards: list[str]) -> Iterator[Row]:
    for name in shards:
        yield {"text": _topics()[name], "where": f"topic {name!r} of Python's documentation"}


def digits() -> Data:
    """1,797 handwritten digits of 8 x 8 pixels, and their names; of each digit every fifth is held out.

    Raises:
        InputError: scikit-learn is not installed.
    """
    sklearn = needed("sklearn", "train")
    pixels, labels = _digits()
    held = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        held[np.flatnonzero(labels == digit)[::EVERY_DIGIT]] = True
    every = hashlib.blake2b(pixels.tobytes() + labels.tobytes(), digest_size=16)
    facts: dict[str, Any] = {
        "scikit-learn": sklearn.__version__,
        "fingerprint": every.hexdigest(),
        "split": "held out: of each digit, of 5 pictures the first",
    }
    kept = [tuple(part.tolist()) for part in np.array_split(np.flatnonzero(~held), PARTS)]
    train = streamed(_spelled, shards=kept)
    return Data("digits", train, list(_spelled([tuple(np.flatnonzero(held).tolist())])), int((~held).sum()), facts)


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    found = needed("sklearn.datasets", "train").load_digits()
    return np.rint(found.images * (255 / 16)).astype(np.uint8), found.target.astype(np.int64)


def _spelled(shards: list[tuple[int, ...]]) -> Iterator[Row]:
    pixels, labels = _digits()
    for shard in shards:
        for number in shard:
            yield {
                "image": pixels[number].copy(),
                "text": SPELLED[labels[number]],
                "where": f"digits, row {number + 1}",
            }
