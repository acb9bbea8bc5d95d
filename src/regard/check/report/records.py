"""The parts of a report: mistakes with an example, steps and attentions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.check.location import CodeLocation

__all__ = ["AttentionResult", "Example", "FoundMistake", "StepResult", "StepStatus", "Verdict"]

Verdict = Literal["right", "right in another layout or convention", "different by design", "wrong", "undetermined"]
StepStatus = Literal["holds", "violated", "design", "not exercised", "absent"]


@dataclass(frozen=True)
class Example:
    """One step of the mistake on three tokens of two numbers, next to the same step of the definition."""

    step: str
    setting: str
    """The inputs: heads, mask, batch."""
    yours: list[list[float]]
    definition: list[list[float]]

    def __str__(self) -> str:
        left, right = _lines(self.yours), _lines(self.definition)
        rows = max(len(left), len(right))
        left += [""] * (rows - len(left))
        right += [""] * (rows - len(right))
        wide = max(len("yours"), *(len(line) for line in left))
        head = f"{'yours':<{wide}}   the definition"
        return "\n".join([head, *(f"{a:<{wide}}   {b}".rstrip() for a, b in zip(left, right, strict=True))])


def _lines(table: list[list[float]]) -> list[str]:
    return [" ".join(f"{number:9.4f}" for number in row) for row in table]


@dataclass(frozen=True)
class FoundMistake:
    """A known mistake that the implementation makes."""

    id: str
    """As in ``regard check --list``, and the name of its page in docs/mistakes/."""
    step: str
    """The step of the definition in which it is made."""
    message: str
    """What is wrong, in one sentence with the measured number."""
    impact: str
    """What it does to a model."""
    location: CodeLocation | None = None
    """The line of the user's code that makes it, if it was found."""
    references: tuple[str, ...] = ()
    """Issues about the same mistake in published code, as owner/name#number."""
    fix: str = ""
    """What to write instead, in one line."""
    smallest: str = ""
    """The smallest input that was found to show it, as "x (1, 2, 4)", where one was looked for."""


@dataclass(frozen=True)
class StepResult:
    """What is known of one step of the definition."""

    step: str
    """"projections", "positions", "scores", "scaled", "biased", "masked", "weights", "output", "heads", "projected"; of
    some mistakes "call" or "block", which are around it."""
    status: StepStatus
    text: str
    """What holds or does not, in a short sentence with the measured numbers; or why it was not exercised."""


@dataclass(frozen=True)
class AttentionResult:
    """One attention of several in a model."""

    path: str
    """Of its module, as in `torch.nn.Module.named_modules`."""
    verdict: Verdict
    text: str
    """What is wrong or otherwise by design; empty where it is right."""
