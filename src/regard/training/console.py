"""How a run goes, on standard error: a progress bar, what is measured, a few examples; and the wish to leave."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from regard.escape import visible
from regard.training.callbacks import Watcher
from regard.training.checkpoint import Progress as Where
from regard.training.tasks import Sample

__all__ = ["Terminal", "told"]

RECENT = 20
"""Loss and speed are means over so many updates."""
LONGEST = 100
"""Characters of a text that are shown."""


class Terminal(Watcher):
    """A progress bar where there is a terminal; lines at each look at the held-out examples everywhere.

    The first SIGTERM, SIGUSR1 (what SLURM sends ahead of its time limit) or Ctrl-C asks the run to save and leave; a
    second Ctrl-C ends it where it is.
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.asked: int | None = None
        """The signal that came."""
        self._losses: deque[tuple[float, int, float]] = deque(maxlen=RECENT)
        self._bar = Progress(
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
    def listening(self) -> Iterator[None]:
        """Hear signals while the block runs."""
        heard = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)]
        before = {number: signal.signal(number, self._hear) for number in heard}
        try:
            yield
        finally:
            self._bar.stop()
            for number, handler in before.items():
                signal.signal(number, handler)

    def began(self, steps: int, progress: Where) -> None:
        """Show the bar."""
        self._task = self._bar.add_task("", total=steps, completed=progress.step, loss=0.0, speed=0.0)
        self._bar.start()

    def leaving(self) -> bool:
        """Whether a signal came."""
        return self.asked is not None

    def updated(self, progress: Where, loss: float) -> None:
        """Move the bar."""
        self._losses.append((loss, progress.tokens, progress.seconds))
        first, last = self._losses[0], self._losses[-1]
        speed = (last[1] - first[1]) / max(last[2] - first[2], 1e-9) if len(self._losses) > 1 else 0.0
        loss = sum(one[0] for one in self._losses) / len(self._losses)
        assert self._task is not None
        self._bar.update(self._task, completed=progress.step, loss=loss, speed=speed)

    def looked(self, progress: Where, metrics: dict[str, float], samples: Sequence[Sample]) -> None:
        """Say what was measured, and show examples."""
        self.say(f"update {progress.step:,}: {told(metrics)}" + ("" if progress.waited else ", the best so far"))
        for sample in samples:
            wanted = (
                "" if not sample.wanted or sample.wanted == sample.written else f"   (wanted: {_cut(sample.wanted)})"
            )
            self.say(f"  {_cut(sample.source)} → {_cut(sample.written)}{wanted}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _hear(self, number: int, frame: FrameType | None) -> Any:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number
        self.say("saving, and leaving; Ctrl-C once more ends it at once")


def told(metrics: dict[str, float]) -> str:
    """Measures as a person reads them."""
    words = {"held_out_loss": "held-out loss", "bits_per_byte": "bits per byte"}
    said = []
    for name, value in metrics.items():
        if name == "left_out":
            said.append(f"{value:,.0f} row{'s' * (value != 1)} left out for their length")
        else:
            shown = f"{value:.1%}" if name in ("exact", "accuracy") else f"{value:.3f}"
            said.append(f"{words.get(name, name)} {shown}")
    return ", ".join(said)


def _cut(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
