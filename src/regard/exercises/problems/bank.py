"""The known mistakes of `regard.check` as variants of an exercise's definition, alone and in pairs.

The definition and every mistake are recipes (`regard.check.recipes`): the same code computes them for `regard check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from torch import Tensor

from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.mistake import MaskSource, Mistake
from regard.check.mistakes.recipe_examples import sentence_numbers
from regard.check.recipes.case import Case
from regard.check.recipes.recipe import RecipeCache, first_step
from regard.check.recipes.state import STEP_NAMES, Choices, State
from regard.check.report import FoundMistake
from regard.exercises.problems.problem import OwnMistake, Variant

__all__ = ["Bank"]

OF_MASKS, AFTER = ("seen", "fill"), (("after", "mask"),)
"""Slots, and a choice of another one, that need a mask."""
CONSTANTS = (2**0.5, 2.0, 8.0, 64.0, 100.0)
"""What scores are divided by for every width, where the width is not read off the tensors."""
LAST_SLOTS = {"scores": "scores", "scaled": "scale", "weights": "after"}
"""Of exercises that end before the values are read: later slots may not fit what a mistake leaves there."""
PRECISION: tuple[Choices, ...] = ({"scale": "float32"}, {"scale": "float32-inverse"}, {"softmax": "float32"})
"""Right, but for rounding: with a mistake, code in these ways is still explained to 1e-9."""


class Bank:
    """The variants of an exercise whose definition is a recipe.

    Args:
        case: makes the recipe's case of the arguments of a call.
        result: what of a recipe's steps is the result.
        mask: where the mask comes from.
        own: mistakes of the exercise itself, tried before the bank's.
        without: ids of the bank that mean nothing here.
        pairs: whether two mistakes at once are looked for.
        last: the last step of the definition that the exercise asks for.
    """

    def __init__(
        self,
        case: Callable[..., Case],
        result: Callable[[State], Tensor],
        *,
        mask: MaskSource = "none",
        own: tuple[OwnMistake, ...] = (),
        without: tuple[str, ...] = (),
        pairs: bool = True,
        last: str = "projected",
    ) -> None:
        self._case, self._result = case, result
        self._own, self._pairs = own, pairs
        self._steps = STEP_NAMES[: STEP_NAMES.index(last) + 1]
        self._last_slot = LAST_SLOTS.get(last, "out")
        self._caches: dict[int, tuple[tuple[Any, ...], Case, RecipeCache]] = {}
        known = [
            each
            for each in MISTAKES.values()
            if each.id not in without and (not each.mask_sources or mask in each.mask_sources)
        ]
        self._singles = [(each, choices) for each in known for choices in each.recipe]
        self._singles += [(MISTAKES["scale-constant"], {"scale": 1 / number}) for number in CONSTANTS]

    def right(self, *args: Any) -> Tensor:
        """The definition's result."""
        return self.result_of(args, {})

    def result_of(self, args: tuple[Any, ...], choices: Choices) -> Tensor:
        """The result of a recipe.

        Raises:
            ValueError: its shapes do not fit.
        """
        state = self.state(args, choices)
        if state is None:
            raise ValueError("the shapes do not fit")
        return self._result(state)

    def state(self, args: tuple[Any, ...], choices: Choices, last_slot: str = "") -> State | None:
        """Every step of a recipe up to those that the exercise asks for; None where its shapes do not fit.

        Args:
            args: of a call.
            choices: of the recipe.
            last_slot: another one to end with.
        """
        if id(args) not in self._caches:
            case = self._case(*args)
            self._caches[id(args)] = args, case, RecipeCache(case)
        _, case, cache = self._caches[id(args)]
        if case.may is None:  # a call without a mask: what is done with masks makes no difference
            choices = {
                name: choice for name, choice in choices.items() if (name, choice) not in AFTER and name not in OF_MASKS
            }
        return cache.state(choices, last_slot or self._last_slot)

    def case(self, args: tuple[Any, ...]) -> Case:
        """The recipe's case of the arguments of a call."""
        return self._case(*args)

    def shown(self, yours: State) -> Iterator[tuple[str, Tensor]]:
        """The steps that the exercise asks for, by their names."""
        for name in self._steps:
            value = getattr(yours, name, None)
            if value is not None:
                yield name, value

    def variants(self) -> Iterable[Variant]:
        """The exercise's own mistakes, each of the bank's, and then two of them together."""
        yield from self._own
        singles = self._singles
        for known, choices in singles:
            yield _RecipeVariant(self, ((known, choices),))
        for known, choices in singles:
            for way in PRECISION:
                if not way.keys() & choices.keys():
                    yield _RecipeVariant(self, ((known, choices),), way)
        if self._pairs:
            for one, other in combinations(singles, 2):
                if one[0] is not other[0] and not one[1].keys() & other[1].keys():
                    yield _RecipeVariant(self, (one, other))


@dataclass(frozen=True, eq=False)
class _RecipeVariant:
    """One or two mistakes of the bank."""

    bank: Bank
    made: tuple[tuple[Mistake, Choices], ...]
    way: Choices | None = None
    """A right way to compute, with other rounding."""

    @property
    def choices(self) -> Choices:
        """Of all of them."""
        joined: dict[str, Any] = dict(self.way or {})
        for _, choices in self.made:
            joined |= choices
        return joined

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(known.id for known, _ in self.made)

    def output(self, args: tuple[Any, ...]) -> Tensor:
        """The recipe's result."""
        return self.bank.result_of(args, self.choices)

    def trails(self, args: tuple[Any, ...]) -> Iterable[list[Tensor]]:
        """For each mistake, from the first step that it changes to its own step."""
        yours, right = self.bank.state(args, self.choices), self.bank.state(args, {})
        if yours is None or right is None:
            return
        for known, choices in self.made:
            first = STEP_NAMES.index(first_step(choices))
            last = STEP_NAMES.index(known.step) if known.step in STEP_NAMES else len(STEP_NAMES)
            last = max(last, STEP_NAMES.index("v") if first == 0 else 0)  # of q, k and v any may be meant
            changed = {
                name: value
                for name, value in self.bank.shown(yours)
                if first <= STEP_NAMES.index(name) <= max(first, last) and not _same(value, getattr(right, name))
            }
            own = changed.pop(known.step, None)  # an earlier step may be the definition's, where a mask comes too late
            yield [*([] if own is None else [own]), *changed.values()]

    def found(self, args: tuple[Any, ...]) -> tuple[FoundMistake, ...]:
        """The mistakes in the bank's words."""
        yours, right = self.bank.state(args, self.choices), self.bank.state(args, {}, "out")
        if yours is None or right is None:
            return ()
        several = []
        for known, choices in self.made:
            numbers = sentence_numbers(known, choices, self.bank.case(args), yours, right)
            message, impact = known.message.format_map(numbers), known.impact.format_map(numbers)
            several.append(FoundMistake(known.id, known.step, message, impact, references=known.references))
        return tuple(sorted(several, key=lambda each: STEP_NAMES.index(each.step)))


def _same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and bool((one == other).all())
