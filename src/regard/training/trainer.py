"""The loop: batch after batch, on one process or many, from any checkpoint on."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.errors import InputError
from regard.pretrained import Pretrained
from regard.training import checkpoint
from regard.training.callbacks import Ended, Watcher
from regard.training.checkpoint import Progress
from regard.training.data import Data
from regard.training.dataloader import Batches
from regard.training.distributed import State, all_sum, alone, is_sharded, put, taken, whole
from regard.training.loss_module import Learner, optimizer_of
from regard.training.plots import draw
from regard.training.run_dir import Folder
from regard.training.tasks import Batch, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Loop"]

JUDGED = 200
"""For so many held-out rows a text is written at each look; for all of them at the end."""
SHOWN = 3
"""So many of them are told."""


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
        InputError: a batch that does not divide among the processes; held-out rows that cannot be used.
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
        self.task, self.fabric, self.folder = task, fabric, folder
        self.settings, self.progress, self.watcher = task.settings, progress, watcher
        self.pretrained = pretrained
        self._unwritten: InputError | None = None
        self.batches = Batches(
            task, data, fabric, pretrained, progress, leaving=watcher.leaving, failed=lambda: self._unwritten
        )
        # Weights of which each process has a share can be neither saved nor asked: a copy has them whole.
        self.model = replace(pretrained, model=deepcopy(pretrained.model)) if is_sharded(fabric) else pretrained
        self.learner = Learner(pretrained.model, task, self.settings.label_smoothing, dropout=self.settings.dropout)
        self.module = fabric.setup_module(self.learner)
        self.optimizer = optimizer_of(self.learner, lr=self.settings.lr, weight_decay=self.settings.weight_decay)
        self.stepper: Any = fabric.setup_optimizers(self.optimizer)
        put(state, self.learner, self.optimizer)
        held_out = [(row, task.held_out(row, pretrained)) for row in data.held_out]
        self.rows = [row for row, examples in held_out if examples]
        self.left_out = len(held_out) - len(self.rows)
        self.judged = [example for _, examples in held_out for example in examples]
        self.judged.sort(key=lambda example: len(example["targets"]))
        if not self.judged:
            raise InputError(
                f"all {self.left_out} held-out rows of {data.name} are longer than --context {self.settings.context}"
            )

    def run(self) -> Ended:
        """Train to the end, or until somebody wants to leave.

        Raises:
            InputError: data that cannot be used, a loss that is no number, a checkpoint that cannot be written.
        """
        settings, progress = self.settings, self.progress
        metrics: dict[str, float] = {}
        batches = iter(self.batches)
        if self.fabric.is_global_zero:
            self.watcher.began(settings.steps, progress)
        on_device = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        with torch.random.fork_rng(devices=on_device):
            while progress.step < settings.steps:
                if settings.patience is not None and progress.waited >= settings.patience:
                    return Ended("patience", progress, metrics)
                batch = self._next(batches)
                if batch is None:
                    self._save()
                    return Ended("asked to leave", progress, metrics)
                self._update(*batch)
                done = progress.step == settings.steps
                if done or progress.step % settings.evaluate_every == 0:
                    metrics = self._look(at_all=done)
        return Ended("done", progress, metrics)

    def _next(self, batches: Iterator[tuple[list[Batch], int] | None]) -> tuple[list[Batch], int] | None:
        """A row that cannot be used does not take with it what was learned so far."""
        try:
            return next(batches)
        except InputError:
            if self.progress.step and self._unwritten is None:
                self._save()
            raise

    # One update.

    def _update(self, parts: Sequence[Batch], predicted: int) -> None:
        """Move the weights against the gradient of the mean loss of a batch."""
        settings, progress, fabric = self.settings, self.progress, self.fabric
        begun = time.perf_counter()
        self.learner.train()
        # Dropout goes by the update and the process, so that nothing of the generator has to be saved.
        torch.manual_seed(random.Random(f"{settings.seed} {progress.step} {fabric.global_rank}").getrandbits(63))
        rate = settings.rate(progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        own = torch.zeros((), device=fabric.device)
        scale = fabric.world_size / predicted  # processes average their gradients, and the loss is a sum
        for i, part in enumerate(parts):
            with self._gathering(last=i == len(parts) - 1):
                loss = self.module(fabric.to_device(part.tensors), scale)
                fabric.backward(loss)
            own += loss.detach()
        norm = whole(nn.utils.clip_grad_norm_(self.learner.parameters(), settings.clip))
        total, tokens = all_sum(fabric, float(own) / scale, sum(part.tokens for part in parts))
        if not math.isfinite(total) or not math.isfinite(float(norm)):
            self._stop(total / predicted, float(norm), parts)
        self.stepper.step()
        self.stepper.zero_grad()
        progress.step += 1
        progress.batches += 1
        progress.tokens += int(tokens)
        took = time.perf_counter() - begun
        progress.seconds += took
        if fabric.is_global_zero:
            told = {"step": progress.step, "loss": total / predicted, "lr": rate, "gradient": float(norm)}
            try:
                self.folder.note({**told, "tokens": int(tokens), "seconds": round(took, 4)})
            except InputError as error:
                self._unwritten = error  # the others hear of it before the next update
            self.watcher.updated(progress, total / predicted)

    def _gathering(self, last: bool) -> AbstractContextManager[object]:
        """Processes exchange their gradients after the last part of a batch."""
        if self.fabric.world_size == 1:
            return nullcontext()
        return self.fabric.no_backward_sync(self.module, enabled=not last)

    def _stop(self, loss: float, norm: float, parts: Sequence[Batch]) -> None:
        rows = sorted({row for part in parts for row in part.where})
        raise InputError(
            f"in update {self.progress.step + 1} the loss is {loss:g} and its gradient {norm:g} long: nothing was "
            f"changed by it. The rows were {', '.join(rows[:3])}{', ...' if len(rows) > 3 else ''}. "
            f"{self._kept()}. A smaller --lr, a longer --warm-up or a smaller --clip helps where it is the training "
            "that runs away"
        )

    def _kept(self) -> str:
        kept = checkpoint.latest(self.folder.path)
        return f"The last good checkpoint is {kept}" if kept else "There is no checkpoint yet"

    # The held-out examples.

    def _look(self, at_all: bool) -> dict[str, float]:
        """Judge the model by what it was not trained on, save it, and tell."""
        progress, rows = self.progress, self.rows
        self.learner.eval()
        loss = self._held_out_loss()
        if not math.isfinite(loss):
            raise InputError(f"after update {progress.step} the held-out loss is {loss:g}. {self._kept()}")
        if progress.best is None or loss < progress.best:
            progress.best, progress.best_step, progress.waited = loss, progress.step, 0
        else:
            progress.waited += 1
        self._refresh()
        told: dict[str, float] = {"held_out_loss": loss}

        def judge() -> None:
            most = len(rows) if at_all else JUDGED
            told.update(self.task.judge(self.model, rows, loss, most))
            if self.settings.skip_long:
                told["left_out"] = self.left_out + progress.left_out
            self.folder.note({"step": progress.step, **told})
            self.watcher.looked(progress, told, self.task.samples(self.model, rows[:SHOWN]))
            draw(self.folder, self.task.watched(self.model, rows[0]), progress.step)

        alone(self.fabric, judge)
        self._save()
        return told

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        """The mean over every token that is predicted, in nats."""
        world, rank = self.fabric.world_size, self.fabric.global_rank
        loss = predicted = 0.0
        for start in range(0, len(self.judged), self.batches.share * world):
            chunk = self.judged[start : start + self.batches.share * world]
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
        if self.model is self.pretrained:
            return
        copies = dict(Learner(self.model.model, self.task).named_parameters())
        for name, parameter in self.learner.named_parameters():
            copies[name].data.copy_(whole(parameter))

    def _save(self) -> None:
        """Write a checkpoint; where it is the best so far, it becomes the run's model."""
        self._refresh()
        if not all(bool(weight.isfinite().all()) for weight in self.model.model.parameters()):
            raise InputError(f"after update {self.progress.step} weights are no longer finite. {self._kept()}")
        state = taken(self.learner, self.optimizer)

        def write() -> None:
            path = checkpoint.write(self.folder.path, self.model, state, self.progress)
            if self.progress.best_step == self.progress.step:
                checkpoint.promote(self.folder.path, path)

        alone(self.fabric, write)
