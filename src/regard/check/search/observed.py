"""What a call returned, beside what recipes return for the same input."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.check.mistakes.mistake import MaskSource
from regard.check.recipes.case import Case
from regard.check.recipes.recipe import RecipeCache
from regard.check.recipes.state import Choices, State

__all__ = ["TOLERANCE", "Observed", "without_keys"]

TOLERANCE = 1e-9
"""Relative to the largest number of the output."""


@dataclass(eq=False)
class Observed:
    """One call: its input in the definition's layout, and what came of it."""

    case: Case
    output: Tensor
    asked: MaskSource = "none"
    ignored: Tensor | None = None
    """Rows of the output, (batch, queries), that are not looked at: those of padding, where they are set to zero."""
    recipes: RecipeCache = field(init=False)

    def __post_init__(self) -> None:
        self.recipes = RecipeCache(self.case)

    def state(self, choices: Choices) -> State | None:
        """What a recipe computes on it."""
        # A recipe has no dropout; without the torch function mode of `without_dropout` it takes a quarter less time.
        with torch._C.DisableTorchFunction():
            return self.recipes.state(choices)

    def fits(self, choices: Choices) -> bool:
        """Whether a recipe returns the same."""
        state = self.state(choices)
        with torch._C.DisableTorchFunction():
            return state is not None and fits(self.output, state, self.ignored)

    def error(self, choices: Choices) -> float:
        """How far a recipe is from what was returned, in units of what rounding allows."""
        state = self.state(choices)
        if state is None:
            return math.inf
        with torch._C.DisableTorchFunction():
            return _error(self.output, state, self.ignored)

    def gap(self, choices: Choices) -> float:
        """How far a recipe is from what was returned; where it is rounding alone, 0."""
        state = self.state(choices)
        assert state is not None
        gap = (state.last - self.output).abs()
        dead = without_keys(state, self.output)
        worst = float((gap if dead is None else gap.masked_fill(dead, 0.0)).max())
        return worst if worst > 1e-14 * max(1.0, float(self.output.nan_to_num().abs().max())) else 0.0


def fits(output: Tensor, state: State, ignored: Tensor | None = None) -> bool:
    """Whether an output is a recipe's, but for queries that have nothing to attend to, where customs differ."""
    return _error(output, state, ignored) <= 1


def _error(output: Tensor, state: State, ignored: Tensor | None) -> float:
    mine = state.last
    if mine.shape != output.shape:
        return math.inf
    gap = (mine - output).abs()
    dead = without_keys(state, output)
    if ignored is not None:
        rows = ignored[..., None] if output.ndim == 3 else ignored[:, None, :, None]
        dead = rows.expand_as(output) if dead is None else dead | rows
    if dead is not None:
        gap = gap.masked_fill(dead, 0.0)
        output = output.masked_fill(dead, 0.0)
    most = output.abs().max().item()
    worst = gap.max().item()
    return worst / (TOLERANCE * max(1.0, most)) if math.isfinite(worst) else math.inf


def without_keys(state: State, output: Tensor) -> Tensor | None:
    """Which numbers of an output are of queries that have nothing to attend to; None where there are none."""
    rows = (state.masked == -torch.inf).all(-1)
    if not bool(rows.any()):
        return None
    if output.ndim == 4:
        return rows[..., None].expand_as(output) if rows.shape[-1] == output.shape[-2] else None
    whole = rows.any(1)
    if whole.shape != output.shape[:2]:
        return None
    return whole[..., None].expand_as(output)
