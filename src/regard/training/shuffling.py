"""The order of the examples of a run: the same for any number of processes, and from any point on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from regard.training.data import TrainingData
from regard.training.tasks.batch import Example

EncodeRow = Callable[[Mapping[str, Any], int], Sequence[Example]]
"""The examples of a row of the data in the epoch of this number."""

SHUFFLE_BUFFER = 10_000
"""Each example is drawn at random from a buffer of this many."""


def epoch_examples(
    data: TrainingData, encode: EncodeRow, epoch: int, *, seed: int, rank: int, world_size: int, skip: int = 0
) -> Iterator[Example]:
    """The examples that a process has of one pass over the data.

    All processes together have the order of a single process: process r of n has its examples r, r + n, r + 2n, ... So
    each process reads all rows. If each read its own files, batches would depend on the number of processes, and
    as soon as the files of one process end, the remaining rows of the others would not be trained on.

    Args:
        data: where rows come from.
        encode: makes examples of a row.
        epoch: its number, from 0; each epoch has its own order.
        seed: of the order.
        rank: of this process.
        world_size: the number of processes.
        skip: the number of examples of this epoch that this process has had before.
    """

    def encode_batch(batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        names = list(batch)
        rows = (dict(zip(names, values, strict=True)) for values in zip(*batch.values(), strict=True))
        return {"example": [example for row in rows for example in encode(row, epoch)]}

    columns = list(data.eval_rows[0])
    examples = data.train.map(encode_batch, batched=True, batch_size=16, remove_columns=columns)
    examples = examples.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)
    examples.set_epoch(epoch)
    for row in islice(iter(examples), rank + skip * world_size, None, world_size):
        yield row["example"]
