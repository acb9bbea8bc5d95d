"""The loop: batch after batch, on one process or many, from any checkpoint on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.errors import InputError
from regard.pretrained import Pretrained
from regard.training import checkpoint
from regard.training.checkpoint import Progress
from regard.training.data import Data
from regard.training.engine import State, all_sum, is_sharded, put, taken, whole
from regard.training.folder import Folder
from regard.training.learner import Learner
from regard.training.order import Example, epoch
from regard.training.pictures import draw
from regard.training.tasks import Batch, Sample, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Ended", "Loop", "Watcher"]

JUDGED = 200
"""For so many held-out rows a text is written at each look; for all of them at the end."""
SHOWN = 3
"""So many of them are told."""


class Watcher:
    """Somebody who is told how a run goes, in the process of rank 0. This one does not care."""

    def began(self, steps: int, progress: Progress) -> None:
        """Before the first update of this session."""

    def updated(self, progress: Progress, loss: float) -> None:
        """After each update."""

    def looked(self, progress: Progress, metrics: dict[str, float], samples: Sequence[Sample]) -> None:
        """After each look at the held-out examples."""

    def leaving(self) -> bool:
        """Whether to save and leave; asked before each update, in every process."""
        return False


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    why: str
    """``done``, ``patience`` or ``asked to leave``."""
    progress: Progress
    metrics: dict[str, float]
    """Of the last look at the held-out examples in this session."""


class Loop:
    """A run.

    Args:
        task: what is learned.
        data: from what.
        fabric: launched.
        folder: of the run; the process of rank 0 writes to it.
        pretrained: the model, whose weights are trained in place.
        state: of a checkpoint's optimizer; empty for a run that begins.
        progress: of that checkpoint.
        watcher: who is told.

    Raises:
        InputError: a batch that does not divide among the processes.
    """

    def __init__(
        self,
        task: Task,
        data: Data,
        fabric: Fabric,
        folder: Folder,
        pretrained: Pretrained,
        state: State,
        progress: Progress,
        watcher: Watcher,
    ) -> None:
        self.task, self.data, self.fabric, self.folder = task, data, fabric, folder
        self.settings, self.progress, self.watcher = task.settings, progress, watcher
        self.share = self.settings.share(fabric.world_size)
        self.tokens = pretrained
        # Weights of which each process has a share can be neither saved nor asked: a copy has them whole.
        self.model = replace(pretrained, model=deepcopy(pretrained.model)) if is_sharded(fabric) else pretrained
        self.learner = Learner(pretrained.model, task, self.settings.label_smoothing)
        self.module = fabric.setup_module(self.learner)
        self.optimizer = torch.optim.AdamW(self._groups(), lr=self.settings.lr, betas=(0.9, 0.98))
        self.stepper: Any = fabric.setup_optimizers(self.optimizer)
        put(state, self.learner, self.optimizer)
        self.judged = [example for row in data.held_out for example in task.held_out(row, pretrained)]
        self.judged.sort(key=lambda example: len(example["targets"]))

    def run(self) -> Ended:
        """Train to the end, or until somebody wants to leave.

        Raises:
            InputError: data that cannot be used, a loss that is no number, a checkpoint that cannot be written.
        """
        settings, progress = self.settings, self.progress
        metrics: dict[str, float] = {}
        batches = self._batches()
        if self.fabric.is_global_zero:
            self.watcher.began(settings.steps, progress)
        on_device = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        with torch.random.fork_rng(devices=on_device):
            while progress.step < settings.steps:
                parts, predicted = next(batches)
                if predicted is None:
                    self._save()
                    return Ended("asked to leave", progress, metrics)
                self._update(parts, predicted)
                done = progress.step == settings.steps
                if done or progress.step % settings.evaluate_every == 0:
                    metrics = self._look(at_all=done)
                    if settings.patience is not None and progress.waited >= settings.patience:
                        return Ended("patience", progress, metrics)
        return Ended("done", progress, metrics)

    # What is trained on.

    def _batches(self) -> Iterator[tuple[list[Batch], int | None]]:
        """This process's parts of each batch, and how many tokens all processes predict; None: leave."""
        progress, size = self.progress, self.share * self.settings.accumulate
        while True:
            examples = self._examples(skip=progress.batches * size)
            while True:
                error, own = None, []
                try:
                    own = list(islice(examples, size))
                except InputError as raised:
                    error = raised
                is_full = len(own) == size
                parts = (
                    [self.task.batch(own[i : i + self.share]) for i in range(0, size, self.share)] if is_full else []
                )
                # Whatever one process meets, all of them have to do: an epoch's end, a bad row, the wish to leave.
                predicted, ended, failed, leaving = all_sum(
                    self.fabric,
                    sum(part.predicted for part in parts),
                    not is_full,
                    error is not None,
                    self.watcher.leaving(),
                )
                if failed:
                    self._save()
                    raise error or InputError("another process met data that cannot be used, and says which")
                if leaving:
                    yield [], None
                if ended:
                    break
                yield parts, int(predicted)
            if progress.batches == 0:
                raise InputError(
                    f"{self.data.name} makes fewer than the {self.settings.batch_size} examples of one batch: give more "
                    "data, or a smaller --batch-size"
                )
            progress.epoch, progress.batches = progress.epoch + 1, 0

    def _examples(self, skip: int) -> Iterator[Example]:
        rank, world = self.fabric.global_rank, self.fabric.world_size

        def encode(row: Example, number: int) -> Sequence[Example]:
            return self.task.encode(row, number, self.tokens)

        seed = self.settings.seed
        return epoch(self.data, encode, self.progress.epoch, seed=seed, rank=rank, world=world, skip=skip)

    # One update.

    def _update(self, parts: Sequence[Batch], predicted: int) -> None:
        """Move the weights against the gradient of the mean loss of a batch."""
        settings, progress, fabric = self.settings, self.progress, self.fabric
        begun = time.perf_counter()
        self.learner.train()
        # Dropout goes by the update and the process, so that nothing of the generator has to be saved.
        torch.manual_seed((settings.seed * 2**31 + progress.step) * 2**12 + fabric.global_rank)
        rate = settings.rate(progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        own = torch.zeros((), device=fabric.device)
        for i, part in enumerate(parts):
            with self._gathering(last=i == len(parts) - 1):
                loss = self.module(fabric.to_device(part.tensors))
                # Processes average their gradients, and the loss is a sum.
                fabric.backward(loss * (fabric.world_size / predicted))
            own += loss.detach()
        norm = whole(nn.utils.clip_grad_norm_(self.learner.parameters(), settings.clip))
        total, tokens = all_sum(fabric, float(own), sum(part.tokens for part in parts))
        if not math.isfinite(total) or not math.isfinite(float(norm)):
            self._stop(total / predicted, float(norm), parts)
        self.stepper.step()
        self.stepper.zero_grad()
        progress.step += 1
        progress.batches += 1
        progress.tokens += int(tokens)
        took = time.perf_counter() - begun
        progress.seconds += took
        told = {"step": progress.step, "loss": total / predicted, "lr": rate, "gradient": float(norm)}
        self._alone(lambda: self.folder.note({**told, "tokens": int(tokens), "seconds": round(took, 4)}), shared=False)
        if fabric.is_global_zero:
            self.watcher.updated(progress, total / predicted)

    def _gathering(self, last: bool) -> AbstractContextManager[object]:
        """Processes exchange their gradients after the last part of a batch."""
        if self.fabric.world_size == 1:
            return nullcontext()
        return self.fabric.no_backward_sync(self.module, enabled=not last)

    def _stop(self, loss: float, norm: float, parts: Sequence[Batch]) -> None:
        rows = sorted({row for part in parts for row in part.where})
        kept = checkpoint.latest(self.folder.path)
        raise InputError(
            f"in update {self.progress.step + 1} the loss is {loss:g} and its gradient {norm:g} long: nothing was changed "
            f"by it. The rows were {', '.join(rows[:3])}{', ...' if len(rows) > 3 else ''}. "
            + (f"The last good checkpoint is {kept}. " if kept else "There is no checkpoint yet. ")
            + "A smaller --lr, a longer --warm-up or a smaller --clip helps where it is the training that runs away"
        )

    def _groups(self) -> list[dict[str, object]]:
        """Matrices shrink by weight decay; biases, norms and the like do not."""
        parameters = list(self.learner.parameters())
        return [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]

    # The held-out examples.

    def _look(self, at_all: bool) -> dict[str, float]:
        """Judge the model by what it was not trained on, save it, and tell."""
        progress, rows = self.progress, self.data.held_out
        self.learner.eval()
        loss = self._held_out_loss()
        if progress.best is None or loss < progress.best:
            progress.best, progress.best_step, progress.waited = loss, progress.step, 0
        else:
            progress.waited += 1
        self._refresh()
        told: dict[str, float] = {"held_out_loss": loss}

        def judge() -> None:
            most = len(rows) if at_all else JUDGED
            told.update(self.task.judge(self.model, rows, loss, most))
            self.folder.note({"step": progress.step, **told})
            self.watcher.looked(progress, told, self.task.samples(self.model, rows[:SHOWN]))
            draw(self.folder, self.task.watched(self.model, rows[0]), progress.step)

        self._alone(judge)
        self._save()
        return told

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        """The mean over every token that is predicted, in nats."""
        world, rank = self.fabric.world_size, self.fabric.global_rank
        loss = predicted = 0.0
        for start in range(0, len(self.judged), self.share * world):
            chunk = self.judged[start : start + self.share * world]
            # Shared weights are gathered by all processes together, so each has something to run.
            own = chunk[rank::world]
            batch = self.task.batch(own or chunk[:1])
            summed = float(self.module(self.fabric.to_device(batch.tensors)))
            if own:
                loss, predicted = loss + summed, predicted + batch.predicted
        loss, predicted = all_sum(self.fabric, loss, predicted)
        return loss / predicted

    # What is kept.

    def _refresh(self) -> None:
        """Bring the copy that has all weights up to date."""
        if self.model is self.tokens:
            return
        copies = dict(Learner(self.model.model, self.task).named_parameters())
        for name, parameter in self.learner.named_parameters():
            copies[name].data.copy_(whole(parameter))

    def _save(self) -> None:
        """Write a checkpoint; where it is the best so far, it becomes the run's model."""
        self._refresh()
        state = taken(self.learner, self.optimizer)

        def write() -> None:
            path = checkpoint.write(self.folder.path, self.model, state, self.progress)
            if self.progress.best_step == self.progress.step:
                checkpoint.promote(self.folder.path, path)

        self._alone(write)

    def _alone(self, do: Callable[[], None], *, shared: bool = True) -> None:
        """Do something in the process of rank 0. If it fails there, it fails everywhere.

        Args:
            do: what.
            shared: whether the others wait for it.
        """
        failed: str | None = None
        if self.fabric.is_global_zero:
            try:
                do()
            except InputError as error:
                if not shared or self.fabric.world_size == 1:
                    raise
                failed = str(error)
        if shared and self.fabric.world_size > 1 and (failed := self.fabric.broadcast(failed)) is not None:
            raise InputError(failed)
