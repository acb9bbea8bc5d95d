"""Mistakes that a block shows when it is run as a whole."""

from __future__ import annotations

from regard.check.mistakes.catalog import MISTAKES
from regard.check.search.stage import Diagnosis

__all__ = ["add_mistake"]


def add_mistake(diagnosis: Diagnosis, mistake: str, **numbers: object) -> None:
    """Add a known mistake with the numbers of its sentence, once."""
    if not any(known.id == mistake and old == numbers for known, old in diagnosis.behaviour):
        diagnosis.behaviour.append((MISTAKES[mistake], numbers))
