"""All exercises in their order, and how one is found by what a learner calls it. Imports no PyTorch."""

from __future__ import annotations

from difflib import get_close_matches

from regard.errors import InputError, short_repr
from regard.exercises.exercise import Exercise
from regard.exercises.statements.attention import ATTENTION
from regard.exercises.statements.heads import HEADS
from regard.exercises.statements.masks import MASKS
from regard.exercises.statements.models import MODELS
from regard.exercises.statements.positions import POSITIONS
from regard.exercises.statements.vectors import VECTORS

__all__ = ["EXERCISES", "find"]

EXERCISES: tuple[Exercise, ...] = (*VECTORS, *ATTENTION, *POSITIONS, *MASKS, *HEADS, *MODELS)
"""01 to 20."""


def find(name: str | int) -> Exercise:
    """An exercise by its number or its slug.

    Args:
        name: 5, "5", "05", "projections", "05 projections" or "05_projections".

    Raises:
        InputError: there is none; the message names the nearest, or how many there are.

    Example:
        >>> from regard.exercises import find
        >>> find("05").title
        'Queries, keys and values'
    """
    wanted = str(name).strip().lower().replace("_", "-").replace(" ", "-").removesuffix(".py")
    for each in EXERCISES:
        if wanted in (each.slug, f"{each.number:02d}-{each.slug}") or (
            wanted.isascii() and wanted.isdigit() and int(wanted[:9]) == each.number
        ):
            return each
    near = get_close_matches(wanted, [each.slug for each in EXERCISES], n=1)
    hint = f"; do you mean {near[0]}?" if near else f"; they are 01 to {len(EXERCISES)}: regard exercise lists them"
    raise InputError(f"there is no exercise {short_repr(str(name))}{hint}")
