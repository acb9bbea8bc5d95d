"""A recipe: one choice for each slot, in the order in which they are computed.

The first choice of every slot is the definition's; the others are layouts, designs or mistakes. Slots before a mistake
are computed once for all recipes that share them, so that thousands of pairs of mistakes cost little more than their
last steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from regard.check.recipes import output, projections, scores, weights
from regard.check.recipes.case import Case
from regard.check.recipes.state import STEP_NAMES, Choices, State

__all__ = ["RecipeCache", "definition", "first_step"]


@dataclass(frozen=True)
class _Slot:
    """One decision of a recipe."""

    compute: Callable[[State, Any], State]
    definition: str
    """The definition's choice."""
    first_step: str
    """The first step that another choice may change, or that it changes to what can be laid beside the definition's."""


SLOTS = {
    "sources": _Slot(projections.sources, "given", "q"),
    "linear": _Slot(projections.linear, "qkv", "q"),
    "split": _Slot(projections.split, "heads", "q"),
    "rounds": _Slot(projections.rounds, "plain", "q"),
    "roles": _Slot(projections.roles, "qkv", "scores"),
    "groups": _Slot(projections.groups, "beside", "q"),
    "seen": _Slot(scores.seen, "given", "masked"),
    "scores": _Slot(scores.scores, "qk", "scores"),
    "scale": _Slot(scores.scale, "key", "scaled"),
    "bias": _Slot(scores.bias, "added", "biased"),
    "fill": _Slot(scores.fill, "inf", "masked"),
    "softmax": _Slot(weights.softmax, "keys", "weights"),
    "after": _Slot(weights.after, "nothing", "weights"),
    "product": _Slot(weights.product, "weights", "weights"),
    "merge": _Slot(output.merge, "beside", "heads"),
    "out": _Slot(output.out, "linear", "projected"),
}
ORDER = tuple(SLOTS.values())
WITHOUT_Q = {("split", "tokens"), ("groups", "one-sequence")}
"""Choices after which q has another shape than the definition's."""
MISFIT = (RuntimeError, IndexError, ValueError, KeyError, AssertionError)
"""What a choice raises where the shapes do not fit, or where there is nothing to choose."""


class RecipeCache:
    """Computes recipes on one case; what they share is computed once."""

    num_computed: ClassVar[int] = 0
    """Recipes that were computed in this process, on all cases: the work of a search."""

    def __init__(self, case: Case) -> None:
        self._kept: dict[tuple[Any, ...], State | None] = {(): State(case)}

    def state(self, choices: Choices, last: str = "out") -> State | None:
        """Every step of a recipe, up to a slot; None where its shapes do not fit."""
        RecipeCache.num_computed += 1
        return self._state(_all_choices(choices)[: list(SLOTS).index(last) + 1])

    def _state(self, chosen: tuple[Any, ...]) -> State | None:
        if chosen not in self._kept:
            before = self._state(chosen[:-1])
            try:
                self._kept[chosen] = before and ORDER[len(chosen) - 1].compute(before, chosen[-1])
            except MISFIT:
                self._kept[chosen] = None
        return self._kept[chosen]

    def uncached(self, choices: Choices, slot: str) -> State | None:
        """Every step of a recipe, nothing kept from a slot on: for numbers that are only tried, or have gradients."""
        RecipeCache.num_computed += 1
        chosen = _all_choices(choices)
        at = list(SLOTS).index(slot)
        state = self._state(chosen[:at])
        try:
            for step, choice in zip(ORDER[at:], chosen[at:], strict=True):
                state = state and step.compute(state, choice)
        except MISFIT:
            return None
        return state


def _all_choices(choices: Choices) -> tuple[Any, ...]:
    return tuple(choices.get(name, slot.definition) for name, slot in SLOTS.items())


def definition(case: Case) -> State:
    """What the definition computes."""
    state = RecipeCache(case).state({})
    assert state is not None
    return state


def first_step(choices: Choices) -> str:
    """The first step that choices may change, or that they change to what can be laid beside the definition's."""
    steps = ("scores" if (name, choice) in WITHOUT_Q else SLOTS[name].first_step for name, choice in choices.items())
    return min(steps, key=STEP_NAMES.index)
