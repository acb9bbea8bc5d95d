"""Which recipe returns what the implementation returned: the definition's, one otherwise, or one with mistakes.

Nothing is named that does not reproduce every output to 1e-9 in float64.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from regard.check.causes import CAUSES, OTHERWISE, Asked, Known, Otherwise
from regard.check.recipe import Case, Choices, Kitchen, State

__all__ = ["Found", "Observed", "Search", "fits"]

CLOSE = 1e-9
"""Relative to the largest number of the output."""
MASKING = frozenset({"seen", "fill", "scores", "after", "softmax", "scale", "bias"})
"""Slots that a mask may change."""
UNKNOWN: tuple[tuple[str, Known, Callable[[float], Any]], ...] = (
    ("scale", CAUSES["scale-constant"], float),
    ("fill", CAUSES["mask-weak-fill"], float),
    ("fill", CAUSES["mask-weak-fill"], lambda number: ("add", number)),
)
"""Numbers that may be anything: the slot, the mistake, and how the slot takes a number."""
FREE = 15
"""Starting points from which an unknown number is looked for."""


@dataclass(eq=False)
class Observed:
    """One call: its input in the definition's layout, and what came of it."""

    case: Case
    output: Tensor
    asked: Asked = "none"
    kitchen: Kitchen = field(init=False)

    def __post_init__(self) -> None:
        self.kitchen = Kitchen(self.case)

    def state(self, choices: Choices) -> State | None:
        """What a recipe computes on it."""
        return self.kitchen.state(choices)

    def fits(self, choices: Choices) -> bool:
        """Whether a recipe returns the same."""
        state = self.state(choices)
        return state is not None and state.last is not None and fits(self.output, state)


@dataclass(frozen=True)
class Found:
    """A recipe that reproduces everything, and what its choices mean."""

    choices: Choices
    causes: tuple[tuple[Known, Choices], ...] = ()
    otherwise: tuple[Otherwise, ...] = ()


def fits(output: Tensor, state: State) -> bool:
    """Whether an output is a recipe's, but for queries that have nothing to attend to, where customs differ."""
    mine = state.last
    assert mine is not None
    if mine.shape != output.shape:
        return False
    gap = (mine - output).abs()
    dead = _dead(state, output)
    if dead is not None:
        gap = gap.masked_fill(dead, 0.0)
        output = output.masked_fill(dead, 0.0)
    most = output.abs().max().item()
    worst = gap.max().item()
    return worst <= CLOSE * max(1.0, most) and math.isfinite(worst)


def _dead(state: State, output: Tensor) -> Tensor | None:
    masked = state.masked
    if masked is None:
        return None
    rows = (masked == -torch.inf).all(-1)
    if not bool(rows.any()):
        return None
    if output.ndim == 4:
        return rows[..., None].expand_as(output) if rows.shape[-1] == output.shape[-2] else None
    whole = rows.any(1)
    if whole.shape != output.shape[:2]:
        return None
    return whole[..., None].expand_as(output)


class Search:
    """Looks for what explains some calls, until a moment."""

    def __init__(self, until: float, *, functions: bool, packed: bool = False) -> None:
        self.until = until
        self.functions = functions
        self.packed = packed

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.until

    def right(self, observed: Sequence[Observed], base: Choices | None = None, *, most: int = 2) -> Found | None:
        """The definition, or something right in another way."""
        for otherwise in self._otherwise(most):
            merged = _merged(base or {}, *(each.choices for each in otherwise))
            if merged is not None and all(each.fits(merged) for each in observed):
                return Found(merged, (), otherwise)
        return None

    def wrong(
        self, observed: Sequence[Observed], base: Found, level: Literal["one", "number", "two"], *, masks: bool = False
    ) -> Found | None:
        """Mistakes upon what is known already.

        Args:
            observed: the calls to be explained.
            base: what explains others.
            level: one mistake; one whose number is not known, with none or one beside it; or two.
            masks: whether only what a mask may change is in question.
        """
        asked = {each.asked for each in observed}
        singles = [
            (known, choices)
            for known in CAUSES.values()
            if self._can(known, asked)
            for choices in known.choices
            if not masks or set(choices) <= MASKING
        ]
        if level == "two":
            several = [pair for pair in itertools.combinations(singles, 2) if pair[0][0] is not pair[1][0]]
        else:
            several = [(each,) for each in singles]
        for otherwise in [()] if masks else self._otherwise(1):
            if level == "number":
                several_or_none = ((), *several)
                for causes in several_or_none:
                    found = self._measured(observed, base, otherwise, causes)
                    if found is not None or self.late:
                        return found
            else:
                for causes in several:
                    found = self._try(observed, base, otherwise, causes)
                    if found is not None:
                        return found
                if self.late:
                    return None
        return None

    def _can(self, known: Known, asked: set[Asked]) -> bool:
        if not (known.functions if self.functions else known.modules):
            return False
        return not known.asked or bool(asked & set(known.asked))

    def _otherwise(self, most: int) -> Iterator[tuple[Otherwise, ...]]:
        can = [
            each
            for each in OTHERWISE
            if (each.functions if self.functions else each.modules) and (self.packed or not each.packed)
        ]
        for number in range(most + 1):
            yield from itertools.combinations(can, number)

    def _try(
        self,
        observed: Sequence[Observed],
        base: Found,
        otherwise: tuple[Otherwise, ...],
        causes: tuple[tuple[Known, Choices], ...],
    ) -> Found | None:
        added = [*(each.choices for each in otherwise), *(choices for _, choices in causes)]
        merged = _merged(base.choices, *added)
        if merged is None or not all(each.fits(merged) for each in observed):
            return None
        return Found(merged, causes, (*base.otherwise, *otherwise))

    def _measured(
        self,
        observed: Sequence[Observed],
        base: Found,
        otherwise: tuple[Otherwise, ...],
        causes: tuple[tuple[Known, Choices], ...],
    ) -> Found | None:
        """A number that no formula gives: what the scores are multiplied by, or what blocked ones become."""
        merged = _merged(base.choices, *(each.choices for each in otherwise), *(choices for _, choices in causes))
        if merged is None:
            return None
        for slot, known, write in UNKNOWN:
            if slot in merged or (slot == "fill" and all(each.case.may is None for each in observed)):
                continue
            numbers = [number] if (number := solved(observed[0], merged, slot, write)) is not None else []
            for each in observed[1:] if numbers else ():
                if each.fits({**merged, slot: write(numbers[0])}):
                    numbers.append(numbers[0])
                elif (other := solved(each, merged, slot, write)) is not None:
                    numbers.append(other)
            if len(numbers) != len(observed):
                continue
            if slot == "scale":
                named = self._formula(observed, merged, numbers)
                if named is not None:
                    return Found({**merged, slot: numbers[0]}, (*causes, named), (*base.otherwise, *otherwise))
            if max(numbers) - min(numbers) <= 1e-9 * abs(max(numbers)):
                single = (known, {slot: write(numbers[0])})
                return Found({**merged, **single[1]}, (*causes, single), (*base.otherwise, *otherwise))
        return None

    def _formula(
        self, observed: Sequence[Observed], merged: Choices, numbers: Sequence[float]
    ) -> tuple[Known, Choices] | None:
        """The formula that gives the numbers that were measured, to float32's precision: sqrt may be taken in it."""
        for known in CAUSES.values():
            for choices in known.choices:
                if set(choices) != {"scale"} or choices["scale"] == "floor":
                    continue
                states = [each.state({**merged, **choices}) for each in observed]
                if all(
                    state is not None and abs(state.scaling - number) < 1e-6 * abs(number)
                    for state, number in zip(states, numbers, strict=True)
                ):
                    return known, {**choices, "scale": numbers[0]}
        return None


def _merged(*several: Choices) -> dict[str, Any] | None:
    merged: dict[str, Any] = {}
    for choices in several:
        if set(choices) & set(merged):
            return None
        merged.update(choices)
    return merged


def solved(observed: Observed, choices: Choices, slot: str, write: Callable[[float], Any] = float) -> float | None:
    """The number that a slot must have to reproduce an output; None where none does.

    Args:
        observed: a call.
        choices: of the other slots.
        slot: whose number is not known.
        write: makes the slot's choice of a number.
    """
    kitchen, output = observed.kitchen, observed.output

    def miss(number: float) -> tuple[float, Tensor | None]:
        state = kitchen.state({**choices, slot: write(number)})
        if state is None or state.last is None or state.last.shape != output.shape:
            return math.inf, None
        gap = state.last - output
        dead = _dead(state, output)
        if dead is not None:
            gap = gap.masked_fill(dead, 0.0)
        size = gap.norm().item()
        return (size if math.isfinite(size) else math.inf), gap

    signs = (1.0, -1.0) if slot == "fill" else (1.0,)
    starts = [sign * 10 ** (-2.5 + 4.5 * n / (FREE - 1)) for n in range(FREE) for sign in signs]
    first = miss(starts[0])
    if first[1] is None:
        return None
    ranked = sorted(starts, key=lambda number: miss(number)[0])[:3]
    for start in ranked:
        number = start
        size, gap = miss(number)
        for _ in range(25):
            if gap is None or size <= CLOSE * 1e-3:
                break
            step = 1e-6 * max(abs(number), 1e-3)
            near = miss(number + step)[1]
            if near is None:
                break
            slope = (near - gap) / step
            steep = (slope * slope).sum().item()
            if not steep > 0 or not math.isfinite(steep):
                break
            move = -(slope * gap).sum().item() / steep
            for _ in range(8):  # half as far, while it gets no better
                tried = number + move
                found = miss(tried)
                if found[0] < size:
                    break
                move /= 2
            else:
                break
            number, (size, gap) = tried, found
        if observed.fits({**choices, slot: write(number)}):
            kitchen.forget()
            return number
    kitchen.forget()
    return None
