"""The report of a check, for people to read and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar

from regard.check.report.lines import Section, attention_lines, cause_lines, fitted, item_lines, step_lines
from regard.check.report.outcome import Outcome
from regard.check.report.records import AttentionResult, Example, FoundMistake, StepResult, Verdict
from regard.notebook import preformatted_html

__all__ = ["Report"]


@dataclass(frozen=True, repr=False)
class Report(Outcome):
    """The outcome of `regard.check`."""

    noun: ClassVar[str] = "report"

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
    steps: tuple[StepResult, ...] = ()
    """Every step of the definition in its order, also those that were not exercised; none where nothing was seen."""
    attentions: tuple[AttentionResult, ...] = ()
    """Of a model with several: each by itself, in the order in which they run."""

    def __repr__(self) -> str:
        number = len(self.causes)
        counted = f", {number} mistake{'s' if number > 1 else ''}" if number else ""
        return f"<Report {self.name}: {self.verdict}{counted}>"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """In a notebook, a cell that ends with a report shows it whole."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """The report for notebooks, its verdict in bold."""
        verdict, *lines = str(self).split("\n")
        return preformatted_html("\n".join([f"<b>{escape(verdict)}</b>", *map(escape, lines)]), wrap=True)

    def __str__(self) -> str:
        head = [f"{self.name}: {self.verdict}"]
        if self.step is not None:
            head.append(f"first step that deviates: {self.step}")
        example = self.example
        shown = ["", f"{example.step}, {example.setting}", *str(example).split("\n")] if example is not None else []
        sections = [
            Section("head", "", [head]),
            Section("reasons", "", item_lines(self.reasons)),
            Section("attentions", f"{len(self.attentions)} attentions:", attention_lines(self.attentions)),
            Section("steps", "", [step_lines(self.steps, self.causes)]),
            Section("causes", "", [cause_lines(cause) for cause in self.causes]),
            Section("example", "", [shown] if shown else []),
            Section("conventions", "conventions and designs:", item_lines(self.conventions)),
            Section("notes", "notes:", item_lines(self.notes)),
            Section("assumptions", "assumptions:", item_lines(self.assumptions)),
        ]
        return "\n".join(fitted(sections))
