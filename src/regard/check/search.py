"""Which recipe returns what the implementation returned: the definition's, one otherwise, or one with mistakes.

Nothing is named that does not reproduce every output to 1e-9 in float64.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from regard.check.causes import CONVENTIONS, MISTAKES, Convention, MaskSource, Mistake
from regard.check.recipe import Case, Choices, Kitchen, State

__all__ = ["Deadline", "Found", "Observed", "Search", "fits"]

CLOSE = 1e-9
"""Relative to the largest number of the output."""
MASKING = frozenset({"seen", "fill", "scores", "after", "softmax", "scale", "bias"})
"""Slots that a mask may change."""
STEP = 1e-6
"""By which a number is moved to see what comes of it."""
UNKNOWN: tuple[tuple[str, Mistake, Callable[[float], Any]], ...] = (
    ("scale", MISTAKES["scale-constant"], float),
    ("fill", MISTAKES["mask-weak-fill"], float),
    ("fill", MISTAKES["mask-weak-fill"], lambda number: ("add", number)),
)
"""Numbers that may be anything: the slot, the mistake, and how the slot takes a number."""
FREE = 12
"""Starting points from which an unknown number is looked for."""


@dataclass(eq=False)
class Observed:
    """One call: its input in the definition's layout, and what came of it."""

    case: Case
    output: Tensor
    asked: MaskSource = "none"
    ignored: Tensor | None = None
    """Rows of the output, (batch, queries), that are not looked at: those of padding, where they are set to zero."""
    kitchen: Kitchen = field(init=False)

    def __post_init__(self) -> None:
        self.kitchen = Kitchen(self.case)

    def state(self, choices: Choices) -> State | None:
        """What a recipe computes on it."""
        # A recipe has no dropout; without the torch function mode of `quiet` it takes a quarter less time.
        with torch._C.DisableTorchFunction():
            return self.kitchen.state(choices)

    def fits(self, choices: Choices) -> bool:
        """Whether a recipe returns the same."""
        state = self.state(choices)
        with torch._C.DisableTorchFunction():
            return state is not None and state.last is not None and fits(self.output, state, self.ignored)

    def error(self, choices: Choices) -> float:
        """How far a recipe is from what was returned, in units of what rounding allows."""
        state = self.state(choices)
        if state is None or state.last is None:
            return math.inf
        with torch._C.DisableTorchFunction():
            return _error(self.output, state, self.ignored)

    def gap(self, choices: Choices) -> float:
        """How far a recipe is from what was returned; where it is rounding alone, 0."""
        state = self.state(choices)
        assert state is not None
        assert state.last is not None
        gap = (state.last - self.output).abs()
        dead = _dead(state, self.output)
        worst = float((gap if dead is None else gap.masked_fill(dead, 0.0)).max())
        return worst if worst > 1e-14 * max(1.0, float(self.output.nan_to_num().abs().max())) else 0.0


@dataclass(frozen=True)
class Found:
    """A recipe that reproduces everything, and what its choices mean."""

    choices: Choices
    causes: tuple[tuple[Mistake, Choices], ...] = ()
    otherwise: tuple[Convention, ...] = ()


def fits(output: Tensor, state: State, ignored: Tensor | None = None) -> bool:
    """Whether an output is a recipe's, but for queries that have nothing to attend to, where customs differ."""
    return _error(output, state, ignored) <= 1


def _error(output: Tensor, state: State, ignored: Tensor | None) -> float:
    mine = state.last
    assert mine is not None
    if mine.shape != output.shape:
        return math.inf
    gap = (mine - output).abs()
    dead = _dead(state, output)
    if ignored is not None:
        rows = ignored[..., None] if output.ndim == 3 else ignored[:, None, :, None]
        dead = rows.expand_as(output) if dead is None else dead | rows
    if dead is not None:
        gap = gap.masked_fill(dead, 0.0)
        output = output.masked_fill(dead, 0.0)
    most = output.abs().max().item()
    worst = gap.max().item()
    return worst / (CLOSE * max(1.0, most)) if math.isfinite(worst) else math.inf


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


class Deadline:
    """When a search gives up: after an amount of CPU time, so that a busy machine changes no verdict.

    The limit of wall time is for an implementation that waits, such as for a lock or a sleep.
    """

    def __init__(self, cpu_seconds: float, wall_seconds: float = math.inf) -> None:
        self._cpu = time.thread_time() + cpu_seconds
        self._wall = time.monotonic() + wall_seconds

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.thread_time() > self._cpu or time.monotonic() > self._wall

    def share(self, parts: int) -> Deadline:
        """A deadline after one of several equal parts of the time that is left, of half a second at least."""
        left = (max(0.5, self._cpu - time.thread_time()), max(0.5, self._wall - time.monotonic()))
        return Deadline(*(each / parts for each in left))


class Search:
    """Looks for what explains some calls, until a deadline."""

    def __init__(self, deadline: Deadline, *, functions: bool, packed: bool = False) -> None:
        self.deadline = deadline
        self.functions = functions
        self.packed = packed

    def right(self, observed: Sequence[Observed], base: Choices | None = None, *, most: int = 2) -> Found | None:
        """The definition, or something right in another way."""
        for otherwise in self._otherwise(most, observed, base or {}):
            merged = _merged(base or {}, *(each.choices for each in otherwise))
            if merged is not None and all(each.fits(merged) for each in observed):
                return Found(merged, (), otherwise)
        return None

    def wrong(self, observed: Sequence[Observed], base: Found, level: Level, *, masks: bool = False) -> Found | None:
        """Mistakes upon what is known already.

        Args:
            observed: the calls to be explained.
            base: what explains others.
            level: one mistake; one, and a convention or design; one whose number is not known; two; or
                one, and one whose number is not known.
            masks: whether only what a mask may change is in question.
        """
        asked = {each.asked for each in observed}
        several: list[tuple[tuple[Mistake, Choices], ...]]
        singles = [
            (known, choices)
            for known in MISTAKES.values()
            if self._can(known, asked)
            for choices in known.choices
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
                    found = self._measured(observed, base, otherwise, causes)
                    if found is not None or self.deadline.passed:
                        return found
            else:
                every = list(self._each(observed, base, otherwise, several, 1 if level == "two" else len(several)))
                if every:  # the nearest: numbers as small as 1e-9 and 0 are told apart by rounding alone
                    return min(every, key=lambda found: max(each.gap(found.choices) for each in observed))
                if self.deadline.passed:
                    return None
        return None

    def _each(
        self,
        observed: Sequence[Observed],
        base: Found,
        otherwise: tuple[Convention, ...],
        several: Sequence[tuple[tuple[Mistake, Choices], ...]],
        most: int,
    ) -> Iterator[Found]:
        for number, causes in enumerate(several):
            found = self._try(observed, base, otherwise, causes)
            if found is not None:
                yield found
                most -= 1
            if not most or (number % 100 == 0 and self.deadline.passed):
                return

    def _can(self, known: Mistake, asked: set[MaskSource]) -> bool:
        if not (known.functions if self.functions else known.modules):
            return False
        return not known.asked or bool(asked & set(known.asked))

    def _otherwise(self, most: int, observed: Sequence[Observed], base: Choices) -> Iterator[tuple[Convention, ...]]:
        """Up to so many conventions and designs; without those that cannot be, as groups where there are none."""
        can = [
            each
            for each in CONVENTIONS
            if (each.functions if self.functions else each.modules) and (self.packed or not each.packed)
        ]
        if most:
            can = [each for each in can if observed[0].state({**base, **each.choices}) is not None]
        for number in range(most + 1):
            yield from itertools.combinations(can, number)

    def _try(
        self,
        observed: Sequence[Observed],
        base: Found,
        otherwise: tuple[Convention, ...],
        causes: tuple[tuple[Mistake, Choices], ...],
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
        otherwise: tuple[Convention, ...],
        causes: tuple[tuple[Mistake, Choices], ...],
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

    def measured(self, observed: Sequence[Observed], base: Choices) -> Found | None:
        """The definition with numbers of its own by design: a temperature, a soft-cap, a bias of positions."""
        for kind, says, choices, slot, start, write in DESIGNS:
            merged = _merged(base, choices)
            if merged is None or slot in merged:
                continue
            found = []
            for each in observed:
                numbers = fitted(each, merged, slot, start(each), write)
                if numbers is None:
                    break
                found.append(numbers)
                if not _regular(kind, numbers):
                    break
            else:
                one = found[0]
                if kind != "distance" and any(
                    other.shape != one.shape or (other - one).abs().max() > 1e-6 for other in found
                ):
                    one = found[0]
                number = f"{abs(float(one.flatten()[0])):.4g}" if one.numel() == 1 else ""
                otherwise = Convention("design", says.format(number=number), {**choices, slot: write(one)})
                return Found({**merged, slot: write(one)}, (), (otherwise,))
            if self.deadline.passed:
                return None
        return None

    def _formula(
        self, observed: Sequence[Observed], merged: Choices, numbers: Sequence[float]
    ) -> tuple[Mistake, Choices] | None:
        """The formula that gives the numbers that were measured, to float32's precision: sqrt may be taken in it."""
        for known in MISTAKES.values():
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


def _table(observed: Observed) -> Tensor:
    state = observed.state({})
    assert state is not None
    assert state.scores is not None
    return torch.zeros(1, *state.scores.shape[1:], dtype=torch.float64)


def _each_head(observed: Observed) -> Tensor:
    return torch.full_like(_table(observed)[:, :, :1, :1], 3.0)


def _one(number: float) -> Callable[[Observed], Tensor]:
    return lambda observed: torch.tensor([number], dtype=torch.float64)


Design = tuple[str, str, Choices, str, Callable[[Observed], Tensor], Callable[[Tensor], Any]]
Level = Literal["one", "one otherwise", "number", "two", "one and number"]
DESIGNS: tuple[Design, ...] = (
    (
        "number",
        "cosine of queries and keys, times {number} (a temperature)",
        {"rounds": "l2"},
        "scale",
        _one(5.0),
        lambda n: n,
    ),
    (
        "number",
        "cosine of queries and keys, a temperature for each head",
        {"rounds": "l2"},
        "scale",
        _each_head,
        lambda n: n,
    ),
    ("number", "a soft-cap of {number}", {}, "bias", _one(4.0), lambda n: ("softcap", n)),
    ("number", "a soft-cap of {number}", {}, "bias", _one(30.0), lambda n: ("softcap", n)),
    (
        "number",
        "sigmoid instead of softmax, of scores minus {number}",
        {"softmax": "sigmoid"},
        "bias",
        _one(0.5),
        lambda n: ("shift", -n),
    ),
    (
        "distance",
        "a bias by distance (ALiBi, or a learned relative bias) is added to the scores",
        {},
        "bias",
        _table,
        lambda n: ("shift", n),
    ),
    (
        "distance",
        "a relative bias by distance is added to scores that are not scaled (T5)",
        {"scale": "none"},
        "bias",
        _table,
        lambda n: ("shift", n),
    ),
)
"""Numbers that a design brings along: sort, words, the choices with it, the slot, where to begin, how it is written."""


def _regular(kind: str, numbers: Tensor) -> bool:
    """Whether a table holds one number for each distance, up to what is the same for a whole row."""
    if kind != "distance":
        return True
    slopes = numbers.diff(dim=-1)
    if slopes.tril(-1).abs().max() < 1e-4:  # no bias, but another precision
        return False
    return bool(numbers.shape[-1] > 2 and (slopes[..., 1:, 1:] - slopes[..., :-1, :-1]).abs().tril(-1).max() < 1e-6)


def fitted(
    observed: Observed, choices: Choices, slot: str, start: Tensor, write: Callable[[Tensor], Any]
) -> Tensor | None:
    """Numbers that make a recipe return what was returned, by least squares (Gauss and Newton); None if none do."""
    output = observed.output
    if not bool(output.isfinite().all()):
        return None

    def gap(numbers: Tensor) -> Tensor:
        state = observed.kitchen.fresh({**choices, slot: write(numbers)}, slot)
        if state is None or state.last is None or state.last.shape != output.shape:
            raise ValueError("another shape")
        return (state.last - output).flatten()

    numbers = start
    try:
        miss = gap(numbers)
        for _ in range(20):
            if miss.abs().max() <= CLOSE * 1e-2:
                break
            steps = torch.eye(numbers.numel(), dtype=numbers.dtype).reshape(-1, *numbers.shape) * STEP
            slope = torch.stack([(gap(numbers + step) - miss) / STEP for step in steps], 1)
            move = torch.linalg.lstsq(slope, miss[:, None], driver="gelsd").solution[:, 0].reshape(numbers.shape)
            size = miss.norm()
            for _ in range(6):
                tried = gap(numbers - move)
                if tried.norm() < size:
                    break
                move = move / 2
            else:
                break
            numbers, miss = numbers - move, tried
    except (ValueError, RuntimeError):
        return None
    return numbers if float(miss.abs().max()) <= CLOSE * max(1.0, float(output.abs().max())) else None


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
        state = kitchen.fresh({**choices, slot: write(number)}, slot)
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
    ranked = sorted(starts, key=lambda number: miss(number)[0])[:4]
    for start in ranked:
        number = start
        size, gap = miss(number)
        begun = size
        for turn in range(25):
            if gap is None or size <= CLOSE * 1e-3 or (turn == 5 and size > begun / 4):
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
            for _ in range(10):  # half as far, while it gets no better
                tried = number + move
                found = miss(tried)
                if found[0] < size:
                    break
                move /= 2
            else:
                break
            number, (size, gap) = tried, found
        if observed.fits({**choices, slot: write(number)}):
            return number
    return None
