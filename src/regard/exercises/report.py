"""The report of an exercise, for learners to read and for programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from regard.check.report import Example, FoundMistake, Report
from regard.check.report.lines import cause_lines, item_lines, short_path
from regard.check.report.outcome import Outcome
from regard.check.sandbox.schema import to_builtins

__all__ = ["ExerciseReport", "ExerciseVerdict"]

ExerciseVerdict = Literal["right", "wrong", "not filled in yet", "undetermined"]


@dataclass(frozen=True, repr=False)
class ExerciseReport(Outcome):
    """The outcome of `regard.exercises.check`.

    ``print(report)`` explains it; ``report.ok`` is whether the exercise is solved, ``report.to_dict()`` the facts.
    """

    noun: ClassVar[str] = "exercise report"

    number: int
    slug: str
    name: str
    """The function or the class that was checked."""
    file: str
    verdict: ExerciseVerdict
    step: str | None = None
    """The first step that is wrong."""
    causes: tuple[FoundMistake, ...] = ()
    """For the verdict "wrong": the mistakes that together explain the numbers, with the learner's lines."""
    example: Example | None = None
    """What came out beside what should have come out: on the course's numbers, where they show it."""
    calls: int = 0
    """How many calls were compared with the definition."""
    right_calls: int = 0
    """How many of them gave its numbers."""
    error: float = 0.0
    """The largest difference of these, in units of the largest number of a result."""
    reasons: tuple[str, ...] = ()
    """For the verdict "undetermined": why."""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        causes = f", {', '.join(cause.id for cause in self.causes)}" if self.causes else ""
        return f"<ExerciseReport {self.number:02d} {self.slug}: {self.verdict}{causes}>"

    def to_dict(self) -> dict[str, Any]:
        """All facts as dicts, lists, texts and numbers, with "ok"."""
        facts: dict[str, Any] = to_builtins(self)
        return {**facts, "ok": self.ok}

    def as_check_report(self) -> Report:
        """The same as a report of `regard.check`, which has other fields; for annotations."""
        verdict = "undetermined" if self.verdict == "not filled in yet" else self.verdict
        reasons = self.reasons or (("the stub is not filled in yet",) if verdict == "undetermined" else ())
        return Report(self.name, verdict, causes=self.causes, reasons=reasons, step=self.step)

    def __str__(self) -> str:
        lines = [f"exercise {self.number:02d} {self.slug}: {self.verdict}"]
        if self.verdict == "not filled in yet":
            lines += [
                "",
                f"{short_path(self.file)} still has the stub in {self.name}: put your code in the place of the line "
                f"that "
                "raises, and check it again.",
                f"A first hint: regard exercise {self.number:02d} --hint",
            ]
        if self.verdict == "right":
            lines += ["", f"{self.name} gives the definition's numbers in all {self.calls} calls {self._measured()}."]
        if self.step is not None:
            lines.append(f"first step that is wrong: {self.step}")
        for cause in self.causes:
            lines += cause_lines(replace(cause, fix=""))
        lines += self._example_lines()
        if self.verdict == "wrong":
            lines += ["", f"{self.right_calls} of {self.calls} calls give the right numbers."]
        for several in (self.reasons, self.notes):
            lines += [""] * bool(several) + [line for item in item_lines(several) for line in item]
        if self.verdict == "wrong":
            lines += ["", f"A hint: regard exercise {self.number:02d} --hint"]
        return "\n".join(lines)

    def _measured(self) -> str:
        return f"(largest difference {self.error:.1g}, on the course's numbers and on others)"

    def _example_lines(self) -> list[str]:
        if self.example is None:
            return []
        table = str(self.example).replace("the definition", "what should come out", 1).split("\n")
        return ["", f"{self.example.step}, on {self.example.setting}:", *(f"  {line}" for line in table)]
