"""What a check measured, as it crosses from the process of the user's code; and the verdict, which is decided here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from regard.check.causes import MISTAKES
from regard.check.report import Example, FoundMistake, Report, Verdict

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
    """What could not be found out."""
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    example: Example | None = None

    @property
    def verdict(self) -> Verdict:
        """Right in any way only where something was measured, all of it holds, and nothing was left open."""
        if self.mistakes:
            return "wrong"
        if self.undetermined or not self.measurements or not all(each.holds for each in self.measurements):
            return "undetermined"
        if self.designs:
            return "different by design"
        return "right in another layout or convention" if self.conventions else "right"

    def report(self) -> Report:
        """The report.

        Raises:
            ValueError: a mistake that is none of the known ones.
        """
        for found in self.mistakes:
            if found.id not in MISTAKES:
                raise ValueError(f"there is no mistake {found.id[:60]!r}")
        mistakes = tuple(
            replace(found, step=MISTAKES[found.id].step, references=MISTAKES[found.id].references)
            for found in self.mistakes
        )
        verdict, reasons = self.verdict, self.undetermined or (NOTHING_MEASURED,)
        return Report(
            self.name,
            verdict,
            causes=mistakes,
            conventions=() if verdict == "undetermined" else (*self.conventions, *self.designs),
            reasons=reasons if verdict == "undetermined" else (),
            notes=tuple(dict.fromkeys((*self.notes, *(self.undetermined if verdict == "wrong" else ())))),
            assumptions=self.assumptions,
            example=self.example if verdict == "wrong" else None,
            step=mistakes[0].step if mistakes else None,
        )
