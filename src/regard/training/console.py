"""A run on standard error: a progress bar, metrics, samples; signals that stop the run."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from regard.escape import visible
from regard.training.callbacks import Callback
from regard.training.checkpoint import Progress
from regard.training.tasks import EvalSample

MEAN_UPDATES = 20
"""Loss and speed are means over this many updates."""
MAX_SAMPLE_CHARS = 100
"""Characters of a sample's text that are shown."""


class ConsoleCallback(Callback):
    """A progress bar where there is a terminal; lines at each evaluation everywhere.

    The first SIGTERM, SIGUSR1 (which SLURM sends ahead of its time limit) or Ctrl-C lets the run save a checkpoint and
    stop; a second Ctrl-C ends it at once.
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.signal_number: int | None = None
        """The signal that was received."""
        self._losses: deque[tuple[float, int, float]] = deque(maxlen=MEAN_UPDATES)
        self._bar = ProgressBar(
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f} · {task.fields[speed]:,.0f} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Receive signals while the block runs."""
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)]
        previous = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            self._bar.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def on_train_start(self, max_steps: int, progress: Progress) -> None:
        """Show the bar."""
        self._task = self._bar.add_task("", total=max_steps, completed=progress.step, loss=0.0, speed=0.0)
        self._bar.start()

    def should_stop(self) -> bool:
        """Whether a signal was received."""
        return self.signal_number is not None

    def on_update_end(self, progress: Progress, loss: float) -> None:
        """Move the bar."""
        self._losses.append((loss, progress.num_tokens, progress.seconds))
        first, last = self._losses[0], self._losses[-1]
        speed = (last[1] - first[1]) / max(last[2] - first[2], 1e-9) if len(self._losses) > 1 else 0.0
        loss = sum(entry[0] for entry in self._losses) / len(self._losses)
        assert self._task is not None
        self._bar.update(self._task, completed=progress.step, loss=loss, speed=speed)

    def on_evaluate(self, progress: Progress, metrics: dict[str, float], samples: Sequence[EvalSample]) -> None:
        """Print the metrics and some samples."""
        best = "" if progress.wait_count else ", the best so far"
        self.print_line(f"update {progress.step:,}: {format_metrics(metrics)}{best}")
        for sample in samples:
            is_wrong = sample.target and sample.target != sample.prediction
            target = f"   (target: {_shortened(sample.target)})" if is_wrong else ""
            self.print_line(f"  {_shortened(sample.source)} → {_shortened(sample.prediction)}{target}")

    def print_line(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> Any:
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number
        self.print_line("saving checkpoint, then stopping; press Ctrl-C again to end at once")


def format_metrics(metrics: dict[str, float]) -> str:
    """Metrics as a person reads them."""
    labels = {"eval_loss": "eval loss", "exact_match": "exact match", "bits_per_byte": "bits per byte"}
    parts = []
    for name, value in metrics.items():
        if name == "num_skipped":
            parts.append(f"{value:,.0f} row{'s' * (value != 1)} skipped for their length")
        else:
            number = f"{value:.1%}" if name in ("exact_match", "accuracy") else f"{value:.3f}"
            parts.append(f"{labels.get(name, name)} {number}")
    return ", ".join(parts)


def _shortened(text: str) -> str:
    escaped = visible(text)
    return escaped if len(escaped) <= MAX_SAMPLE_CHARS else escaped[: MAX_SAMPLE_CHARS - 1] + "…"
