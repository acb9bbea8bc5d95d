"""The report of a check, for people to read and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json import loads
from typing import Literal

from regard.check.schema import from_builtins, to_builtins, to_json
from regard.errors import InputError

__all__ = ["CodeLocation", "Example", "FoundMistake", "Report", "Verdict"]

Verdict = Literal["right", "right in another layout or convention", "different by design", "wrong", "undetermined"]
EXIT_CODES: dict[str, int] = {"wrong": 1, "undetermined": 3}
"""Exit codes of the command line; any other verdict is 0."""


@dataclass(frozen=True)
class CodeLocation:
    """A line of the user's code."""

    file: str
    line: int
    """Counted from 1, as editors do."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


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


@dataclass(frozen=True)
class Report:
    """The outcome of `regard.check`."""

    name: str
    """The name of the implementation."""
    verdict: Verdict
    causes: tuple[FoundMistake, ...] = ()
    """For the verdict "wrong": the mistakes that together explain the output, in the order of the steps."""
    conventions: tuple[str, ...] = ()
    """The layouts, conventions and designs in which the implementation differs and is right."""
    reasons: tuple[str, ...] = ()
    """For the verdict "undetermined": why."""
    notes: tuple[str, ...] = ()
    """Observations that do not concern ordinary inputs."""
    assumptions: tuple[str, ...] = ()
    """What was assumed in order to call the implementation, such as arguments of its constructor."""
    example: Example | None = None
    step: str | None = None
    """The first step that deviates."""

    @property
    def ok(self) -> bool:
        """Whether the implementation is attention: right, right in another way, or different by design."""
        return self.verdict not in EXIT_CODES

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if `ok`, 1 for "wrong", 3 for "undetermined"."""
        return EXIT_CODES.get(self.verdict, 0)

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> str:
        """The whole report as JSON; infinite and undefined numbers are the texts "inf", "-inf" and "nan"."""
        return to_json({**to_builtins(self), "ok": self.ok}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """A report that `to_json` wrote.

        Raises:
            InputError: it is no such report; the message names what is wrong.
        """
        try:
            facts = loads(text)
            if isinstance(facts, dict):
                facts.pop("ok", None)
            return from_builtins(cls, facts)
        except (ValueError, RecursionError) as error:
            raise InputError(f"this is no report of regard check: {error}") from error

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.verdict}"]
        if self.step is not None:
            lines.append(f"first step that deviates: {self.step}")
        for cause in self.causes:
            lines += ["", f"{cause.id} (in {cause.step}): {cause.message}", f"  {cause.impact}"]
            if cause.location is not None:
                lines.append(f"  {cause.location}")
            if cause.references:
                lines.append(f"  the same mistake in published code: {', '.join(cause.references)}")
        lines += _listed("", self.conventions) + _listed("", self.reasons)
        if self.example is not None:
            lines += ["", f"{self.example.step}, {self.example.setting}", str(self.example)]
        lines += _listed("notes", self.notes) + _listed("assumptions", self.assumptions)
        return "\n".join(lines)


def _listed(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    return ["", *([f"{title}:"] if title else []), *(f"- {item}" for item in items)]
