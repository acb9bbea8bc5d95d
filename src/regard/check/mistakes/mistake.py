"""The records of the bank: a mistake, and something that is right in another way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from regard.check.mistakes.worked_example import FIRST_THAT_SHOWS_IT, RecipeExample, WorkedExample
from regard.check.recipes.state import Choices

__all__ = ["Convention", "MaskSource", "Mistake", "slot"]

MaskSource = Literal["none", "mask", "padding", "flag", "built-in"]
"""Where a mask comes from: nowhere, an argument of queries x keys, one of samples x keys, a flag, the code itself."""


@dataclass(frozen=True)
class Mistake:
    """A known mistake, and everything that is known of it."""

    id: str
    step: str
    """Of the definition; as in `STEP_NAMES`, or "call", "block", "positions" for what is around it."""
    example: str
    """A line of code that makes it."""
    message: str
    """What is wrong, in a sentence; numbers in braces are measured or counted."""
    impact: str
    """What it does to a model."""
    fix: str
    """What to write instead, in one line."""
    recipe: tuple[Choices, ...] = ()
    """Ways to make it, any of which reproduces the output; none for what only shows in how the code behaves."""
    what: Mapping[str, str] = field(default_factory=dict)
    """The words for {what} in its sentences, by the first choice of its recipe."""
    mask_sources: tuple[MaskSource, ...] = ()
    """Where the mask has to come from; anywhere, by default."""
    references: tuple[str, ...] = ()
    """Where it was published, as owner/name#number."""
    worked_example: Callable[[], WorkedExample] | RecipeExample = FIRST_THAT_SHOWS_IT
    """The mistake on the course's numbers: computed from its recipe, or by a function of its own."""

    def words(self, choices: Choices) -> str:
        """The words for {what} where it is made by these choices."""
        return self.what.get(str(next(iter(choices.values()))), "") if choices else ""


@dataclass(frozen=True)
class Convention:
    """Right, in another way."""

    kind: Literal["convention", "design", "precision"]
    message: str
    recipe: Choices
    packed: bool = False
    """Whether only weights that stand in one matrix can have it: those with names of their own are meant by them."""


def slot(name: str, *choices: Any) -> tuple[Choices, ...]:
    """Recipes that differ from the definition in one slot."""
    return tuple({name: choice} for choice in choices)
