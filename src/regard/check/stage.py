"""What is found on the way from an implementation to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from regard.check.causes import MaskSource, Mistake
from regard.check.findings import Measurement
from regard.check.probe import ProbeCall
from regard.check.search import Found, Observed
from regard.check.settings import CallConfig
from regard.check.subject import Subject

__all__ = ["Diagnosis", "Stage"]


@dataclass(eq=False)
class Stage:
    """What is known of one way to mask it: none, a flag, an argument, the code itself."""

    asked: MaskSource
    mask: str
    """How a sentence calls the mask."""
    observed: Sequence[Observed]
    found: Found | None = None
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
    measurements: list[Measurement] = field(default_factory=list)
    """Of what is compared with another definition than attention's."""
