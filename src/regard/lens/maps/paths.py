"""The paths of modules."""

from __future__ import annotations


def stack_of(path: str) -> str:
    """The stack of layers that a module belongs to: its path up to the first number."""
    parts = path.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0]] if numbers else parts[:-1])
