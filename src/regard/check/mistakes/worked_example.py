"""The records of an example: the matrices of a step, yours beside the definition's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from regard.check.recipes.state import Choices

__all__ = ["FIRST_THAT_SHOWS_IT", "MatrixPair", "RecipeExample", "WorkedExample"]


@dataclass(frozen=True)
class MatrixPair:
    """One matrix of a step, yours beside the definition's."""

    title: str
    yours: Tensor
    definition: Tensor
    rows: str = "token"
    """What a row is, and what a column is."""
    columns: str = "channel"


@dataclass(frozen=True)
class WorkedExample:
    """An example of a mistake."""

    setting: str
    """The inputs: heads, mask, batch."""
    step: str
    """The first step that differs."""
    pairs: tuple[MatrixPair, ...]
    numbers: Mapping[str, object] = field(default_factory=dict)
    """The numbers for the sentences of the mistake."""


@dataclass(frozen=True)
class RecipeExample:
    """An example that the mistake's recipe computes."""

    setting: str = ""
    """The inputs that show it best, by their name in `SETTINGS`; the first that show it at all, by default."""
    recipe: Choices | None = None
    """The choices that its line of code makes, where they are not the first of its recipe."""


FIRST_THAT_SHOWS_IT = RecipeExample()
