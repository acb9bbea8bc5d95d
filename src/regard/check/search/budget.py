"""When a search gives up: after so many recipes, whatever the machine and whatever else runs on it."""

from __future__ import annotations

import math
import time

from regard.check.recipes.recipe import RecipeCache

__all__ = ["SearchBudget"]


class SearchBudget:
    """How many recipes a search may compute: work and not time, so that a busy machine changes no verdict.

    The limit of wall time is for an implementation that waits, such as for a lock or a sleep.
    """

    def __init__(self, recipes: float | int = math.inf, wall_seconds: float = math.inf) -> None:
        self._first = RecipeCache.num_computed
        self._recipes = self._first + recipes
        self._wall = time.monotonic() + wall_seconds

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return RecipeCache.num_computed >= self._recipes or time.monotonic() > self._wall

    @property
    def num_searched(self) -> int:
        """Recipes that were computed since it was made."""
        return RecipeCache.num_computed - self._first

    def share(self, parts: int) -> SearchBudget:
        """One of several equal parts of what is left, of 4,000 recipes and half a second at least."""
        left = (max(4_000, self._recipes - RecipeCache.num_computed), max(0.5, self._wall - time.monotonic()))
        return SearchBudget(*(each / parts for each in left))
