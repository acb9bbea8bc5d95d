"""What is found on the way from an implementation to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from regard.check.causes import Asked, Known
from regard.check.probe import (
    Call,
)
from regard.check.search import Found, Observed
from regard.check.settings import Setting
from regard.check.subject import Subject

__all__ = ["Diagnosis", "Stage"]


@dataclass(eq=False)
class Stage:
    """What is known of one way to mask it: none, a flag, an argument, the code itself."""

    asked: Asked
    mask: str
    """How a sentence calls the mask."""
    observed: Sequence[Observed]
    found: Found | None = None
    says: str = ""
    """Of the form of the mask."""
    why: str = ""
    """Where nothing was found."""
    call: Call | None = None


@dataclass(eq=False)
class Diagnosis:
    """Everything that was found."""

    subject: Subject
    setting: Setting | None = None
    stages: list[Stage] = field(default_factory=list)
    behaviour: list[tuple[Known, dict[str, object]]] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    design: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
