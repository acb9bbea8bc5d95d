"""What is found on the way from an implementation to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from regard.check.mistakes.mistake import MaskSource, Mistake
from regard.check.report.findings import Measurement
from regard.check.search.call_configs import CallConfig
from regard.check.search.calls import ProbeCall
from regard.check.search.observed import Observed
from regard.check.search.recipe_search import Match
from regard.check.search.subject import Subject

__all__ = ["Diagnosis", "Stage"]


@dataclass(eq=False)
class Stage:
    """What is known of one way to mask it: none, a flag, an argument, the code itself."""

    asked: MaskSource
    mask: str
    """How a sentence calls the mask."""
    observed: Sequence[Observed]
    found: Match | None = None
    says: str = ""
    """Of the form of the mask."""
    why: str = ""
    """Where nothing was found."""
    call: ProbeCall | None = None


@dataclass(eq=False)
class Diagnosis:
    """Everything that was found."""

    subject: Subject
    setting: CallConfig | None = None
    stages: list[Stage] = field(default_factory=list)
    behaviour: list[tuple[Mistake, dict[str, object]]] = field(default_factory=list)
    conventions: list[str] = field(default_factory=list)
    designs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    """What of the code stands against a verdict."""
    unexplained: list[str] = field(default_factory=list)
    """What the search could not do, such as to call it: others may be able to."""
    is_random: bool = False
    """Whether two calls differ, and dropout is not the cause: then no number of it means anything."""
    measurements: list[Measurement] = field(default_factory=list)
    """Of what is compared with another definition than attention's."""
    numbers: dict[str, object] = field(default_factory=dict)
    """For the sentences of mistakes that no recipe makes: ``number``, the base of a table."""
