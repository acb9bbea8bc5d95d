"""The training loop: updates, evaluations and checkpoints, on one process or many, from any checkpoint on."""

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
from regard.training.callbacks import Callback, TrainResult
from regard.training.checkpoint import Progress
from regard.training.data import TrainingData
from regard.training.dataloader import BatchLoader
from regard.training.distributed import (
    OptimizerState,
    all_sum,
    full_tensor,
    is_sharded,
    load_optimizer_state,
    optimizer_state,
    rank_zero,
    reshard,
)
from regard.training.loss_module import LossModule, build_optimizer
from regard.training.run_dir import RunDir
from regard.training.tasks import Batch, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

EVAL_SAMPLES = 200
"""Each evaluation generates texts for this many eval rows; the last one for all of them."""
SHOWN_SAMPLES = 3
"""The callback receives this many of them."""


class Trainer:
    """The training loop of a run.

    Args:
        task: makes batches of the data and runs the model on them.
        data: the rows to train on and to evaluate on.
        fabric: launched.
        run_dir: of the run; the process of rank 0 writes to it.
        pretrained: the model, whose weights are trained in place.
        state: of a checkpoint's optimizer; empty for a new run.
        progress: of that checkpoint.
        callback: is called during the run.

    Raises:
        InputError: a batch that does not divide among the processes; eval rows that cannot be used.
    """

    def __init__(
        self,
        task: Task,
        data: TrainingData,
        fabric: Fabric,
        run_dir: RunDir,
        pretrained: Pretrained,
        state: OptimizerState,
        progress: Progress,
        callback: Callback,
    ) -> None:
        self.task, self.fabric, self.run_dir = task, fabric, run_dir
        self.config, self.progress, self.callback = task.config, progress, callback
        self.pretrained = pretrained
        self._write_error: InputError | None = None
        self.batches = BatchLoader(
            task,
            data,
            fabric,
            pretrained,
            progress,
            should_stop=callback.should_stop,
            pending_error=lambda: self._write_error,
        )
        # Sharded weights can be neither saved nor evaluated: a copy of the model has all of them.
        sharded = is_sharded(fabric)
        self.full_model = replace(pretrained, model=deepcopy(pretrained.model)) if sharded else pretrained
        config = self.config
        self.loss_module = LossModule(pretrained.model, task, config.label_smoothing, dropout=config.dropout)
        self.fabric_module = fabric.setup_module(self.loss_module)
        self.optimizer = build_optimizer(
            self.loss_module, learning_rate=config.learning_rate, weight_decay=config.weight_decay
        )
        self.fabric_optimizer: Any = fabric.setup_optimizers(self.optimizer)
        load_optimizer_state(state, self.loss_module, self.optimizer)
        encoded = [(row, task.encode_eval(row, pretrained)) for row in data.eval_rows]
        self.eval_rows = [row for row, examples in encoded if examples]
        self.num_skipped = len(encoded) - len(self.eval_rows)
        self.eval_examples = [example for _, examples in encoded for example in examples]
        self.eval_examples.sort(key=lambda example: len(example["targets"]))
        if not self.eval_examples:
            raise InputError(
                f"all {self.num_skipped} eval rows of {data.name} are longer than max_length={config.max_length}"
            )

    def run(self) -> TrainResult:
        """Train to the end, or until the callback stops the run.

        Raises:
            InputError: data that cannot be used, a loss that is not finite, a checkpoint that cannot be written.
        """
        config, progress = self.config, self.progress
        metrics: dict[str, float] = {}
        batches = iter(self.batches)
        if self.fabric.is_global_zero:
            self.callback.on_train_start(config.max_steps, progress)
        devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            while progress.step < config.max_steps:
                if config.patience is not None and progress.wait_count >= config.patience:
                    return TrainResult("patience", progress, metrics)
                batch = self._next_batch(batches)
                if batch is None:
                    self._save()
                    return TrainResult("interrupted", progress, metrics)
                self._update(*batch)
                is_last = progress.step == config.max_steps
                if is_last or progress.step % config.eval_steps == 0:
                    metrics = self._evaluate(all_samples=is_last)
        return TrainResult("completed", progress, metrics)

    def _next_batch(self, batches: Iterator[tuple[list[Batch], int] | None]) -> tuple[list[Batch], int] | None:
        """The next batch; before the error of a row that cannot be used, a checkpoint is saved."""
        try:
            return next(batches)
        except InputError:
            if self.progress.step and self._write_error is None:
                self._save()
            raise

    # One update.

    def _update(self, micro_batches: Sequence[Batch], num_predicted: int) -> None:
        """Change the weights by the gradient of the mean loss of a batch."""
        config, progress, fabric = self.config, self.progress, self.fabric
        started = time.perf_counter()
        self.loss_module.train()
        # Dropout depends on the update and the process, so that no state of the generator has to be saved.
        torch.manual_seed(random.Random(f"{config.seed} {progress.step} {fabric.global_rank}").getrandbits(63))
        learning_rate = config.learning_rate_at(progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        own_loss = torch.zeros((), device=fabric.device)
        scale = fabric.world_size / num_predicted  # processes average their gradients, and the loss is a sum
        for i, batch in enumerate(micro_batches):
            with self._gradient_sync(is_last=i == len(micro_batches) - 1):
                loss = self.fabric_module(fabric.to_device(batch.tensors), scale)
                fabric.backward(loss)
            own_loss += loss.detach()
        grad_norm = float(full_tensor(nn.utils.clip_grad_norm_(self.loss_module.parameters(), config.max_grad_norm)))
        num_tokens = sum(batch.num_tokens for batch in micro_batches)
        total_loss, total_tokens = all_sum(fabric, float(own_loss) / scale, num_tokens)
        mean_loss = total_loss / num_predicted
        if not math.isfinite(total_loss) or not math.isfinite(grad_norm):
            self._raise_diverged(mean_loss, grad_norm, micro_batches)
        self.fabric_optimizer.step()
        self.fabric_optimizer.zero_grad()
        progress.step += 1
        progress.num_batches += 1
        progress.num_tokens += int(total_tokens)
        seconds = time.perf_counter() - started
        progress.seconds += seconds
        if fabric.is_global_zero:
            line = {"step": progress.step, "loss": mean_loss, "learning_rate": learning_rate, "grad_norm": grad_norm}
            try:
                self.run_dir.append_metrics({**line, "num_tokens": int(total_tokens), "seconds": round(seconds, 4)})
            except InputError as error:
                self._write_error = error  # the other processes receive it before the next update
            self.callback.on_update_end(progress, mean_loss)

    def _gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Processes exchange their gradients after the last micro-batch only."""
        if self.fabric.world_size == 1:
            return nullcontext()
        return self.fabric.no_backward_sync(self.fabric_module, enabled=not is_last)

    def _raise_diverged(self, loss: float, grad_norm: float, micro_batches: Sequence[Batch]) -> None:
        rows = sorted({location for batch in micro_batches for location in batch.locations})
        raise InputError(
            f"in update {self.progress.step + 1} the loss is {loss:g} and the norm of its gradient {grad_norm:g}: the "
            f"weights were not changed. The rows were {', '.join(rows[:3])}{', ...' if len(rows) > 3 else ''}. "
            f"{self._checkpoint_text()}. If the training diverges, a smaller learning_rate, longer warmup_steps "
            "or a smaller max_grad_norm helps"
        )

    def _checkpoint_text(self) -> str:
        path = checkpoint.latest(self.run_dir.path)
        return f"The last good checkpoint is {path}" if path else "There is no checkpoint yet"

    # Evaluation.

    def _evaluate(self, all_samples: bool) -> dict[str, float]:
        """Compute the metrics of the eval rows, save a checkpoint, and call the callback."""
        progress, rows = self.progress, self.eval_rows
        self.loss_module.eval()
        loss = self._eval_loss()
        if not math.isfinite(loss):
            raise InputError(f"after update {progress.step} the eval loss is {loss:g}. {self._checkpoint_text()}")
        if progress.best_loss is None or loss < progress.best_loss:
            progress.best_loss, progress.best_step, progress.wait_count = loss, progress.step, 0
        else:
            progress.wait_count += 1
        self._update_full_model()
        metrics: dict[str, float] = {"eval_loss": loss}

        def measure() -> None:
            max_samples = len(rows) if all_samples else EVAL_SAMPLES
            metrics.update(self.task.metrics(self.full_model, rows, loss, max_samples))
            if self.config.skip_long:
                metrics["num_skipped"] = self.num_skipped + progress.num_skipped
            self.run_dir.append_metrics({"step": progress.step, **metrics})
            samples = self.task.samples(self.full_model, rows[:SHOWN_SAMPLES])
            self.callback.on_evaluate(progress, metrics, samples)
            self.run_dir.plot(self.task.record_attention(self.full_model, rows[0]), progress.step)

        rank_zero(self.fabric, measure)
        self._save()
        return metrics

    @torch.no_grad()
    def _eval_loss(self) -> float:
        """The mean over every predicted token, in nats."""
        world_size, rank = self.fabric.world_size, self.fabric.global_rank
        loss = num_predicted = 0.0
        chunk_size = self.batches.micro_batch_size * world_size
        for start in range(0, len(self.eval_examples), chunk_size):
            chunk = self.eval_examples[start : start + chunk_size]
            # Sharded weights are gathered by all processes together, so each process has to run something.
            own = chunk[rank::world_size]
            batch = self.task.batch(own or chunk[:1])
            batch_loss = float(self.fabric_module(self.fabric.to_device(batch.tensors)))
            if own:
                loss, num_predicted = loss + batch_loss, num_predicted + batch.num_predicted
        if is_sharded(self.fabric):
            reshard(self.loss_module)
        loss, num_predicted = all_sum(self.fabric, loss, num_predicted)
        return loss / num_predicted

    # Checkpoints.

    def _update_full_model(self) -> None:
        """Copy sharded weights to the model that has all of them."""
        if self.full_model is self.pretrained:
            return
        copies = dict(LossModule(self.full_model.model, self.task).named_parameters())
        for name, parameter in self.loss_module.named_parameters():
            copies[name].data.copy_(full_tensor(parameter))

    def _save(self) -> None:
        """Write a checkpoint; the best so far becomes the run's model."""
        self._update_full_model()
        if not all(bool(weight.isfinite().all()) for weight in self.full_model.model.parameters()):
            raise InputError(
                f"after update {self.progress.step} weights are no longer finite. {self._checkpoint_text()}"
            )
        state = optimizer_state(self.loss_module, self.optimizer)

        def write() -> None:
            path = checkpoint.write(self.run_dir.path, self.full_model, state, self.progress)
            if self.progress.best_step == self.progress.step:
                checkpoint.promote(self.run_dir.path, path)

        rank_zero(self.fabric, write)
