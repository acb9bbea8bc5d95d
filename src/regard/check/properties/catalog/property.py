"""What is known of a property of attention."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Property"]


@dataclass(frozen=True)
class Property:
    """Something that holds of every attention, unless another design is meant."""

    id: str
    step: str
    """Of the definition, by the names that mistakes have."""
    definition: str
    """What holds, in a sentence."""
    impact: str
    """What it does to a model where it does not hold."""
    fix: str
    """What to write instead, in one line."""
