"""What a comparison found, for people to read and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from regard.check.equivalence.mapping import WeightMapping
from regard.check.report.outcome import Outcome

__all__ = ["Equivalence"]

MAX_LINES = 40


@dataclass(frozen=True)
class Equivalence(Outcome):
    """The outcome of `regard.check` with `against`: whether two attentions, A and B, compute the same."""

    noun: ClassVar[str] = "comparison"
    name: str
    """Of A."""
    against: str
    """Of B."""
    verdict: Literal["same", "same after reordering", "different", "undetermined"]
    step: str | None = None
    """The first step at which they part."""
    reason: str | None = None
    """What differs there, in one sentence with numbers; of "undetermined", why."""
    difference: float | None = None
    """The largest difference of the outputs, as a part of the largest output; of "different", of the step."""
    calls: int = 0
    """How many calls of both were compared."""
    compared: tuple[str, ...] = ()
    """What these calls were."""
    mapping: WeightMapping | None = None
    """How B's parameters are made of A's; None for functions without weights."""
    code: str | None = None
    """The mapping as a function `convert(a, b)`."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.name} against {self.against}: {self.verdict}"]
        if self.step is not None:
            lines.append(f"first step at which they part: {self.step}")
        if self.reason is not None:
            lines.append(f"  {self.reason}")
        if self.ok and self.difference is not None:
            how = ", ".join(self.compared)
            lines.append(f"{self.calls} calls agree; largest difference {self.difference:.1e} ({how})")
        if self.notes:
            lines += ["", "notes:", *(f"- {note}" for note in self.notes)]
        if self.ok and self.code is not None:
            room = MAX_LINES - len(lines) - 1
            code = self.code.rstrip("\n").split("\n")
            if len(code) > room:
                left = len(code) - room + 1
                code = [*code[: room - 1], f"    ...  # {left} more lines: all are in .code, and in --json"]
            lines += ["", *code]
        return "\n".join(lines)
