"""What a check measured, as it crosses from the process of the user's code; and the verdict, which is decided here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from regard.check.mistakes.catalog import MISTAKES
from regard.check.properties.catalog import PROPERTIES
from regard.check.report.records import AttentionResult, Example, FoundMistake, StepResult, Verdict
from regard.check.report.report import Report
from regard.check.report.steps import with_mistakes

__all__ = ["Findings", "Measurement"]

NOTHING_MEASURED = "nothing that it computes was compared with the definition"


@dataclass(frozen=True)
class Measurement:
    """How near some outputs are to those of the variant that explains them: the definition, or one right otherwise."""

    mask: str
    """How the mask of the calls is named; empty for none."""
    calls: int
    error: float
    """The largest difference, in units of what rounding allows."""

    @property
    def holds(self) -> bool:
        """Whether there were outputs, and all of them are the variant's; NaN is not."""
        return self.calls > 0 and 0 <= self.error <= 1


@dataclass(frozen=True)
class Findings:
    """Everything that was measured of an implementation, without a verdict."""

    name: str
    mistakes: tuple[FoundMistake, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    """Of its calls without a mask that is an argument."""
    conventions: tuple[str, ...] = ()
    designs: tuple[str, ...] = ()
    undetermined: tuple[str, ...] = ()
    """What could not be found out of the code: no verdict but "wrong" is possible."""
    unexplained: tuple[str, ...] = ()
    """What no recipe explains or the search could not call, and says nothing where the properties tell."""
    is_random: bool = False
    """Whether its output is random, and not by dropout: then no property of it means anything."""
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    example: Example | None = None
    steps: tuple[StepResult, ...] = ()
    attentions: tuple[AttentionResult, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Right in any way only where something was measured, all of it holds, and nothing was left open."""
        if self.mistakes:
            return "wrong"
        if self.reasons or not self.measurements or not all(each.holds for each in self.measurements):
            return "undetermined"
        if self.designs:
            return "different by design"
        return "right in another layout or convention" if self.conventions else "right"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is undetermined, if nothing else is known."""
        return (*self.undetermined, *self.unexplained)

    def report(self) -> Report:
        """The report.

        Raises:
            ValueError: a mistake that is none of the known ones.
        """
        for found in self.mistakes:
            if found.id not in MISTAKES and found.id not in PROPERTIES:
                raise ValueError(f"there is no mistake {found.id[:60]!r}")
        mistakes = tuple(map(_completed, self.mistakes))
        verdict, reasons = self.verdict, self.reasons or (NOTHING_MEASURED,)
        return Report(
            self.name,
            verdict,
            causes=mistakes,
            conventions=() if verdict == "undetermined" else (*self.conventions, *self.designs),
            reasons=reasons if verdict == "undetermined" else (),
            notes=tuple(dict.fromkeys((*self.notes, *(self.reasons if verdict == "wrong" else ())))),
            assumptions=self.assumptions,
            example=self.example if verdict == "wrong" else None,
            step=mistakes[0].step if mistakes else None,
            steps=with_mistakes(self.steps, mistakes),
            attentions=self.attentions,
        )


def _completed(found: FoundMistake) -> FoundMistake:
    """With what the bank or the catalog of properties says of it, whatever the process of the user's code said."""
    mistake = MISTAKES.get(found.id)
    if mistake is not None:
        return replace(found, step=mistake.step, references=mistake.references, fix=mistake.fix)
    violated = PROPERTIES[found.id]
    return replace(found, step=violated.step, references=(), fix=violated.fix)
