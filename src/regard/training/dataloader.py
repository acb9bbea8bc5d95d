"""Batches: of each, the parts that one process computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from regard.errors import InputError
from regard.pretrained import Pretrained
from regard.training.checkpoint import Progress
from regard.training.data import Data
from regard.training.distributed import all_sum, hold
from regard.training.shuffling import Example, epoch
from regard.training.tasks import Batch, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Batches"]


class Batches:
    """The batches of a run, from where it is on. Whatever one process meets, all of them meet.

    Args:
        task: makes examples of rows.
        data: has the rows.
        fabric: launched.
        pretrained: with the tokenizer.
        progress: where the run is; its epoch and what was left out are kept up to date here.
        leaving: whether this process wants to leave.
        failed: what went wrong in this process since the last batch.

    Raises:
        InputError: a batch that does not divide among the processes.
    """

    def __init__(
        self,
        task: Task,
        data: Data,
        fabric: Fabric,
        pretrained: Pretrained,
        progress: Progress,
        leaving: Callable[[], bool],
        failed: Callable[[], InputError | None],
    ) -> None:
        self.task, self.data, self.fabric = task, data, fabric
        self.pretrained, self.progress = pretrained, progress
        self.leaving, self.failed = leaving, failed
        self.share = task.settings.share(fabric.world_size)
        self._left_out = 0

    def __iter__(self) -> Iterator[tuple[list[Batch], int] | None]:
        """For each update this process's parts, and how many tokens all processes predict; None: one wants to leave.

        Raises:
            InputError: data that cannot be used, too little of it, or what ``failed`` tells, in any process.
        """
        progress, size = self.progress, self.share * self.task.settings.accumulate
        while True:
            self._left_out = 0
            examples = self._examples(skip=progress.batches * size)
            while True:
                own: list[Example] = []
                error = self.failed()
                try:
                    own = list(islice(examples, size))
                except InputError as raised:
                    error = error or raised
                progress.left_out = max(progress.left_out, self._left_out)
                parts = [self.task.batch(own[i : i + self.share]) for i in range(0, len(own), self.share)]
                predicted, ended, failed, leaving = all_sum(
                    self.fabric,
                    sum(part.predicted for part in parts),
                    len(own) < size,
                    error is not None,
                    self.leaving(),
                )
                if failed:
                    hold(self.fabric, error)
                if leaving:
                    yield None
                if ended:
                    break
                yield parts, int(predicted)
            if progress.batches == 0:
                raise InputError(self._too_few())
            progress.epoch, progress.batches = progress.epoch + 1, 0

    def _examples(self, skip: int) -> Iterator[Example]:
        def encode(row: Example, number: int) -> Sequence[Example]:
            found = self.task.encode(row, number, self.pretrained)
            self._left_out += not found
            return found

        rank, world = self.fabric.global_rank, self.fabric.world_size
        seed = self.task.settings.seed
        return epoch(self.data, encode, self.progress.epoch, seed=seed, rank=rank, world=world, skip=skip)

    def _too_few(self) -> str:
        left_out = f" ({self._left_out} rows are left out for their length)" if self._left_out else ""
        return (
            f"{self.data.name} makes fewer than the {self.task.settings.batch_size} examples of one batch{left_out}: "
            "give more data, or a smaller --batch-size"
        )
