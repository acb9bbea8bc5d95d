"""Somebody who follows a run, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.training.checkpoint import Progress
from regard.training.tasks import Sample

__all__ = ["Ended", "Watcher"]


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
