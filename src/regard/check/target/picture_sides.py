"""The sides of a picture that a block leaves open for the model around it to set, as H and W of a block of Swin."""

from __future__ import annotations

from typing import Any

from regard.check.target.layouts import GRID

__all__ = ["sides_of", "with_sides"]

SIDES = (("H", "W"), ("height", "width"))
"""Attributes that hold the sides of the picture whose places the tokens are."""


def with_sides(made: Any) -> Any:
    """The same object, with sides where it has None for them.

    They are whole numbers of its windows, where it has some: else there is padding between the tokens.
    """
    window = getattr(made, "window_size", None)
    sides = (window, 2 * window) if isinstance(window, int) and window > 1 else GRID
    for names in SIDES:
        if all(getattr(made, name, 0) is None for name in names):
            for name, side in zip(names, sides, strict=True):
                setattr(made, name, side)
    return made


def sides_of(made: Any) -> tuple[int, int] | None:
    """The sides that an object has; None where it has none, or they are no numbers."""
    for names in SIDES:
        height, width = (getattr(made, name, None) for name in names)
        if type(height) is int and type(width) is int and min(height, width) > 1:
            return height, width
    return None
