"""The callback of a training run, and the result of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.training.checkpoint import Progress
from regard.training.tasks import EvalSample


class Callback:
    """Methods that a run calls in the process of rank 0. Those of this class do nothing."""

    def on_train_start(self, max_steps: int, progress: Progress) -> None:
        """Called before the first update of this session."""

    def on_update_end(self, progress: Progress, loss: float) -> None:
        """Called after each update."""

    def on_evaluate(self, progress: Progress, metrics: dict[str, float], samples: Sequence[EvalSample]) -> None:
        """Called after each evaluation."""

    def should_stop(self) -> bool:
        """Whether the run shall save a checkpoint and stop. Called before each update, in every process."""
        return False


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    stop_reason: str
    """``completed``, ``patience`` or ``interrupted``."""
    progress: Progress
    metrics: dict[str, float]
    """Of the last evaluation of this session; empty where there was none."""
