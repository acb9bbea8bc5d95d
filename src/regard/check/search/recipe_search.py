"""Which recipe returns what the implementation returned: the definition's, one otherwise, or one with mistakes.

Nothing is named that does not reproduce every output to 1e-9 in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.conventions import CONVENTIONS
from regard.check.mistakes.mistake import Convention, Mistake
from regard.check.recipes.state import Choices
from regard.check.search.budget import SearchBudget
from regard.check.search.designs import DESIGNS
from regard.check.search.fitting import fit_parameters, fit_scalar
from regard.check.search.observed import Observed

__all__ = ["Level", "Match", "RecipeSearch"]

MASKING = frozenset({"seen", "fill", "scores", "after", "softmax", "scale", "bias"})
"""Slots that a mask may change."""
FREE_NUMBERS: tuple[tuple[str, Mistake, Callable[[float], Any]], ...] = (
    ("scale", MISTAKES["scale-constant"], float),
    ("fill", MISTAKES["mask-weak-fill"], float),
    ("fill", MISTAKES["mask-weak-fill"], lambda number: ("add", number)),
)
"""Numbers that may be anything: the slot, the mistake, and how the slot takes a number."""
NEAR = 1e-6
"""Two scales differ by less, relative to them, where one is the other to float32's precision."""
NEAR_SCALE = Convention("precision", "the scale is the definition's to 1e-6, as beside a small number for safety", {})
"""As 1e-6 that is added to sqrt(d_k) against a division by 0."""
Level = Literal["one", "one otherwise", "number", "two", "one and number"]
"""What is tried: one mistake; one, and a convention or design; one whose number is not known; two; or one, and one
whose number is not known."""
Cause = tuple[Mistake, Choices]
"""A mistake, and in which way it is made."""


@dataclass(frozen=True)
class Match:
    """A recipe that reproduces everything, and what its choices mean."""

    choices: Choices
    causes: tuple[Cause, ...] = ()
    otherwise: tuple[Convention, ...] = ()


class RecipeSearch:
    """Looks for what explains some calls, until its budget is spent."""

    def __init__(self, budget: SearchBudget, *, packed: bool = False) -> None:
        self.budget = budget
        self.packed = packed

    def match_convention(
        self, observed: Sequence[Observed], base: Choices | None = None, *, most: int = 2
    ) -> Match | None:
        """The definition, or something right in another way."""
        for otherwise in self._otherwise(most, observed, base or {}):
            merged = _merged(base or {}, *(each.recipe for each in otherwise))
            if merged is not None and all(each.fits(merged) for each in observed):
                return Match(merged, (), otherwise)
        return None

    def match_mistakes(
        self, observed: Sequence[Observed], base: Match, level: Level, *, masks: bool = False
    ) -> Match | None:
        """Mistakes upon what is known already.

        Args:
            observed: the calls to be explained.
            base: what explains others.
            level: how many mistakes, and with what.
            masks: whether only what a mask may change is in question.
        """
        asked = {each.asked for each in observed}
        several: list[tuple[Cause, ...]]
        singles = [
            (known, choices)
            for known in MISTAKES.values()
            if not known.mask_sources or asked & set(known.mask_sources)
            for choices in known.recipe
            if not masks or set(choices) <= MASKING
        ]
        if level == "two":
            singles = [each for each in singles if observed[0].state({**base.choices, **each[1]}) is not None]
            several = [(a, b) for a, b in itertools.combinations(singles, 2) if a[0] is not b[0]]
        else:
            several = [(each,) for each in singles]
        for otherwise in (
            self._otherwise(1, observed, base.choices) if level in ("one otherwise", "number") and not masks else [()]
        ):
            if level in ("number", "one and number"):
                for causes in ((),) if level == "number" else several:
                    found = self._with_free_number(observed, base, otherwise, causes)
                    if found is not None or self.budget.spent:
                        return found
            else:
                every = list(self._each(observed, base, otherwise, several, 1 if level == "two" else len(several)))
                if every:  # the nearest: numbers as small as 1e-9 and 0 are told apart by rounding alone
                    return min(every, key=lambda found: max(each.gap(found.choices) for each in observed))
                if self.budget.spent:
                    return None
        return None

    def _each(
        self,
        observed: Sequence[Observed],
        base: Match,
        otherwise: tuple[Convention, ...],
        several: Sequence[tuple[Cause, ...]],
        most: int,
    ) -> Iterator[Match]:
        for number, causes in enumerate(several):
            found = self._try(observed, base, otherwise, causes)
            if found is not None:
                yield found
                most -= 1
            if not most or (number % 100 == 0 and self.budget.spent):
                return

    def _otherwise(self, most: int, observed: Sequence[Observed], base: Choices) -> Iterator[tuple[Convention, ...]]:
        """Up to so many conventions and designs; without those that cannot be, as groups where there are none."""
        can = [each for each in CONVENTIONS if self.packed or not each.packed]
        if most:
            can = [each for each in can if observed[0].state({**base, **each.recipe}) is not None]
        for number in range(most + 1):
            yield from itertools.combinations(can, number)

    def _try(
        self,
        observed: Sequence[Observed],
        base: Match,
        otherwise: tuple[Convention, ...],
        causes: tuple[Cause, ...],
    ) -> Match | None:
        added = [*(each.recipe for each in otherwise), *(choices for _, choices in causes)]
        merged = _merged(base.choices, *added)
        if merged is None or not all(each.fits(merged) for each in observed):
            return None
        return Match(merged, causes, (*base.otherwise, *otherwise))

    def _with_free_number(
        self,
        observed: Sequence[Observed],
        base: Match,
        otherwise: tuple[Convention, ...],
        causes: tuple[Cause, ...],
    ) -> Match | None:
        """A number that no formula gives: what the scores are multiplied by, or what blocked ones become."""
        merged = _merged(base.choices, *(each.recipe for each in otherwise), *(choices for _, choices in causes))
        if merged is None or observed[0].state(merged) is None:
            return None  # no number makes its shapes fit
        for slot, known, write in FREE_NUMBERS:
            if slot in merged or (slot == "fill" and all(each.case.may is None for each in observed)):
                continue
            numbers = [number] if (number := fit_scalar(observed[0], merged, slot, write)) is not None else []
            for each in observed[1:] if numbers else ():
                if each.fits({**merged, slot: write(numbers[0])}):
                    numbers.append(numbers[0])
                elif (other := fit_scalar(each, merged, slot, write)) is not None:
                    numbers.append(other)
            if len(numbers) != len(observed):
                continue
            if slot == "scale":
                if _gives_scales(observed, merged, numbers):  # it is the definition's, as where another's is the same
                    choices = {**merged, slot: numbers[0]}
                    return Match(choices, causes, (*base.otherwise, *otherwise, NEAR_SCALE))
                named = self._formula(observed, merged, numbers)
                if named is not None:
                    return Match({**merged, slot: numbers[0]}, (*causes, named), (*base.otherwise, *otherwise))
            if max(numbers) - min(numbers) <= 1e-9 * abs(max(numbers)):
                single = (known, {slot: write(numbers[0])})
                return Match({**merged, **single[1]}, (*causes, single), (*base.otherwise, *otherwise))
        return None

    def match_design(self, observed: Sequence[Observed], base: Choices) -> Match | None:
        """The definition with numbers of its own by design: a temperature, a soft-cap, a bias of positions."""
        if any(each.state({}) is None for each in observed):
            return None  # with weights that are read so, the definition computes nothing
        for design in DESIGNS:
            merged = _merged(base, design.recipe)
            if merged is None or design.slot in merged:
                continue
            first: Tensor | None = None
            for each in observed:
                numbers = fit_parameters(each, merged, design.slot, design.start(each), design.write)
                if numbers is None or not design.allows(numbers):
                    break
                first = numbers if first is None else first
            else:
                assert first is not None
                number = f"{abs(float(first.flatten()[0])):.4g}" if first.numel() == 1 else ""
                recipe = {**design.recipe, design.slot: design.write(first)}
                named = Convention("design", design.message.format(number=number), recipe)
                return Match({**merged, **recipe}, (), (named,))
            if self.budget.spent:
                return None
        return None

    def _formula(self, observed: Sequence[Observed], merged: Choices, numbers: Sequence[float]) -> Cause | None:
        """The formula that gives the numbers that were measured, to float32's precision: sqrt may be taken in it."""
        for known in MISTAKES.values():
            for choices in known.recipe:
                if set(choices) != {"scale"} or choices["scale"] == "floor":
                    continue
                if _gives_scales(observed, {**merged, **choices}, numbers):
                    return known, {**choices, "scale": numbers[0]}
        return None


def _gives_scales(observed: Sequence[Observed], merged: Choices, numbers: Sequence[float]) -> bool:
    """Whether the scale that was measured in each call is that of some choices."""
    states = [each.state(merged) for each in observed]
    return all(
        state is not None and abs(state.scaling - number) < NEAR * abs(number)
        for state, number in zip(states, numbers, strict=True)
    )


def _merged(*several: Choices) -> dict[str, Any] | None:
    merged: dict[str, Any] = {}
    for choices in several:
        if set(choices) & set(merged):
            return None
        merged.update(choices)
    return merged
