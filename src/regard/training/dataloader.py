"""The batches of a run: of each, the micro-batches that one process computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from regard.errors import InputError
from regard.pretrained import Pretrained
from regard.training.checkpoint import Progress
from regard.training.data import TrainingData
from regard.training.distributed import all_sum, raise_on_all_ranks
from regard.training.shuffling import epoch_examples
from regard.training.tasks import Batch, Example, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class BatchLoader:
    """The batches of a run, from its progress on. An error or a stop in one process reaches all of them.

    Args:
        task: makes examples of rows.
        data: has the rows.
        fabric: launched.
        pretrained: with the tokenizer.
        progress: of the run; this class updates its epoch and its number of skipped rows.
        should_stop: whether this process wants to stop.
        pending_error: an error of this process since the last batch.

    Raises:
        InputError: the batch does not divide among the processes.
    """

    def __init__(
        self,
        task: Task,
        data: TrainingData,
        fabric: Fabric,
        pretrained: Pretrained,
        progress: Progress,
        should_stop: Callable[[], bool],
        pending_error: Callable[[], InputError | None],
    ) -> None:
        self.task, self.data, self.fabric = task, data, fabric
        self.pretrained, self.progress = pretrained, progress
        self.should_stop, self.pending_error = should_stop, pending_error
        self.micro_batch_size = task.config.micro_batch_size(fabric.world_size)
        self._num_skipped = 0

    def __iter__(self) -> Iterator[tuple[list[Batch], int] | None]:
        """For each update the micro-batches of this process, and how many tokens all processes predict.

        None: a process wants to stop.

        Raises:
            InputError: data that cannot be used, too little data, or a ``pending_error``, in any process.
        """
        progress, size = self.progress, self.micro_batch_size
        num_examples = size * self.task.config.gradient_accumulation_steps
        while True:
            self._num_skipped = 0
            examples = self._examples(skip=progress.num_batches * num_examples)
            while True:
                own: list[Example] = []
                error = self.pending_error()
                try:
                    own = list(islice(examples, num_examples))
                except InputError as raised:
                    error = error or raised
                progress.num_skipped = max(progress.num_skipped, self._num_skipped)
                micro_batches = [self.task.batch(own[i : i + size]) for i in range(0, len(own), size)]
                num_predicted, epoch_ended, failed, stop = all_sum(
                    self.fabric,
                    sum(batch.num_predicted for batch in micro_batches),
                    len(own) < num_examples,
                    error is not None,
                    self.should_stop(),
                )
                if failed:
                    raise_on_all_ranks(self.fabric, error)
                if stop:
                    yield None
                if epoch_ended:
                    break
                yield micro_batches, int(num_predicted)
            if progress.num_batches == 0:
                raise InputError(self._too_few())
            progress.epoch, progress.num_batches = progress.epoch + 1, 0

    def _examples(self, skip: int) -> Iterator[Example]:
        def encode(row: Example, epoch: int) -> Sequence[Example]:
            examples = self.task.encode(row, epoch, self.pretrained)
            self._num_skipped += not examples
            return examples

        rank, world_size = self.fabric.global_rank, self.fabric.world_size
        seed, epoch = self.task.config.seed, self.progress.epoch
        return epoch_examples(self.data, encode, epoch, seed=seed, rank=rank, world_size=world_size, skip=skip)

    def _too_few(self) -> str:
        skipped = f" ({self._num_skipped} rows are skipped for their length)" if self._num_skipped else ""
        return (
            f"{self.data.name} makes fewer than the {self.task.config.batch_size} examples of one batch{skipped}: "
            "give more data, or a smaller batch_size"
        )
