"""The examples of a run in their order: the same for any number of processes, and from any point on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from regard.training.data import Data

__all__ = ["Encode", "Example", "epoch"]

Example = Mapping[str, Any]
Encode = Callable[[Mapping[str, Any], int], Sequence[Example]]
"""Of a row of the data and the number of the epoch, the examples that it makes."""

BUFFER = 10_000
"""Examples are drawn from so many that follow one another."""


def epoch(
    data: Data, encode: Encode, number: int, *, seed: int, rank: int, world: int, skip: int = 0
) -> Iterator[Example]:
    """A process's share of one pass over the data.

    All processes together have the order that one alone would have: process r of n has its examples r, r + n, r + 2n,
    ... Each reads all rows for that. If each read files of its own, batches would hang on how many processes there
    are, and where one's files end first, the rest of the others' would never be trained on.

    Args:
        data: where rows come from.
        encode: makes examples of a row.
        number: of the epoch, from 0; each has an order of its own.
        seed: of the order.
        rank: of this process.
        world: how many processes there are.
        skip: how many examples this process has had of this epoch.
    """

    def encoded(batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        names = list(batch)
        rows = (dict(zip(names, values, strict=True)) for values in zip(*batch.values(), strict=True))
        return {"example": [example for row in rows for example in encode(row, number)]}

    rows = data.train
    examples = rows.map(encoded, batched=True, batch_size=16, remove_columns=list(data.held_out[0]))
    examples = examples.shuffle(seed=seed, buffer_size=BUFFER)
    examples.set_epoch(number)
    for row in islice(iter(examples), rank + skip * world, None, world):
        yield row["example"]
