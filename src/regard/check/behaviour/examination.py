"""A diagnosis while questions are put to its implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from regard.check.mistakes.catalog import MISTAKES
from regard.check.recipes.state import State
from regard.check.search.calls import ProbeCall
from regard.check.search.observed import Observed
from regard.check.search.stage import Diagnosis, Stage

__all__ = ["Examination"]


@dataclass(frozen=True, eq=False)
class ExplainedCall:
    """A call whose recipe is known."""

    call: ProbeCall
    observed: Observed
    state: State
    stage: Stage


class Examination:
    """One diagnosis, and what the questions about behaviour add to it."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        setting = diagnosis.setting
        self.pairs = [] if setting is None else setting.pairs
        """Calls without a mask, each with its case and its output."""
        self.roles = diagnosis.subject.roles()
        """What its arguments mean, by their names."""

    def add_mistake(self, mistake: str, **numbers: object) -> None:
        """Add a known mistake with the numbers of its sentence; the first one counts."""
        if all(known.id != mistake for known, _ in self.diagnosis.behaviour):
            self.diagnosis.behaviour.append((MISTAKES[mistake], numbers))

    def add_note(self, text: str) -> None:
        """Add what is merely to be noted."""
        if text not in self.diagnosis.notes:
            self.diagnosis.notes.append(text)

    @property
    def is_explained(self) -> bool:
        """Whether a recipe is known of the calls without a mask."""
        plain = next(iter(self.diagnosis.stages), None)
        return plain is not None and plain.found is not None

    @property
    def has_mistake(self) -> bool:
        """Whether a mistake was found."""
        found = [stage.found for stage in self.diagnosis.stages if stage.found is not None]
        return bool(self.diagnosis.behaviour) or any(each.causes for each in found)

    def explained_calls(self) -> Iterator[ExplainedCall]:
        """Calls without a mask of an argument that a recipe explains."""
        for stage in self.diagnosis.stages[:1]:
            if stage.found is None:
                continue
            for observed in stage.observed:
                call = next((call for call, _, output in self.pairs if output is observed.output), None)
                state = observed.state(stage.found.choices)
                if call is not None and state is not None:
                    yield ExplainedCall(call, observed, state, stage)

    def masked_calls(self) -> Iterator[tuple[Stage, ProbeCall, Observed]]:
        """One call with each mask of an argument whose recipe is known."""
        for stage in self.diagnosis.stages[1:]:
            if stage.found is None or not stage.observed or stage.asked not in ("mask", "padding"):
                continue
            call = self.call_of(stage, stage.observed[0])
            if call is not None and not call.form.name.startswith("added"):
                yield stage, call, stage.observed[0]

    def call_of(self, stage: Stage, observed: Observed) -> ProbeCall | None:
        """How a stage calls the module that an observation is of: it keeps one call, and modules come in sizes."""
        if stage.call is None:
            return None
        for call, case, _ in self.pairs:
            if case.weights is observed.case.weights and (case.x is observed.case.x and case.q is observed.case.q):
                return replace(stage.call, module=call.module, way=call.way)
        return stage.call
