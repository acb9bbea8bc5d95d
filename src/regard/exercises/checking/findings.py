"""What the process of the learner's code found, as it crosses to the process that asked; without a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from regard.check.report import Example, FoundMistake

__all__ = ["ROUNDING", "Findings"]

ROUNDING = 1e-6
"""What code that computes in float32 differs by; a result that is right to this is right."""


@dataclass(frozen=True)
class Findings:
    """Everything that was measured of what a learner wrote."""

    calls: int = 0
    """How many calls were compared with the definition."""
    right: int = 0
    """How many of them gave the definition's numbers."""
    error: float = 0.0
    """The largest difference, in units of the largest number of a result."""
    is_stub: bool = False
    """Whether the stub is not filled in yet."""
    mistakes: tuple[FoundMistake, ...] = ()
    example: Example | None = None
    """What came out beside what should have come out, on the course's numbers where they show it."""
    reasons: tuple[str, ...] = ()
    """Why nothing could be compared."""
    notes: tuple[str, ...] = ()
