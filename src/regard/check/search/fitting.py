"""Numbers of a recipe that no formula gives, found from what a call returned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.check.recipes.state import Choices
from regard.check.search.observed import TOLERANCE, Observed, without_keys

__all__ = ["fit_parameters", "fit_scalar"]

STEP = 1e-6
"""By which a number is moved to see what comes of it."""
LEAST_NUMBER = 1e-9
NUM_STARTS = 12
"""Starting points from which an unknown number is looked for."""


def fit_parameters(
    observed: Observed, choices: Choices, slot: str, start: Tensor, write: Callable[[Tensor], Any]
) -> Tensor | None:
    """Numbers that make a recipe return what was returned, by least squares (Gauss and Newton); None if none do.

    Args:
        observed: a call.
        choices: of the other slots.
        slot: whose numbers are not known.
        start: where to begin.
        write: makes the slot's choice of the numbers.
    """
    output = observed.output
    if not bool(output.isfinite().all()):
        return None

    def gap(numbers: Tensor) -> Tensor:
        state = observed.recipes.uncached({**choices, slot: write(numbers)}, slot)
        if state is None or state.last.shape != output.shape:
            raise ValueError("another shape")
        return (state.last - output).flatten()

    numbers = start
    try:
        miss = gap(numbers)
        for _ in range(20):
            if miss.abs().max() <= TOLERANCE * 1e-2:
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
    return numbers if float(miss.abs().max()) <= TOLERANCE * max(1.0, float(output.abs().max())) else None


def fit_scalar(observed: Observed, choices: Choices, slot: str, write: Callable[[float], Any] = float) -> float | None:
    """The number that a slot must have to reproduce an output; None where none does.

    Args:
        observed: a call.
        choices: of the other slots.
        slot: whose number is not known.
        write: makes the slot's choice of a number.
    """
    output = observed.output

    def miss(number: float) -> tuple[float, Tensor | None]:
        state = observed.recipes.uncached({**choices, slot: write(number)}, slot)
        if state is None or state.last.shape != output.shape:
            return math.inf, None
        gap = state.last - output
        dead = without_keys(state, output)
        if dead is not None:
            gap = gap.masked_fill(dead, 0.0)
        size = gap.norm().item()
        return (size if math.isfinite(size) else math.inf), gap

    signs = (1.0, -1.0) if slot == "fill" else (1.0,)
    starts = [sign * 10 ** (-2.5 + 4.5 * n / (NUM_STARTS - 1)) for n in range(NUM_STARTS) for sign in signs]
    first = miss(starts[0])
    if first[1] is None:
        return None
    ranked = sorted(starts, key=lambda number: miss(number)[0])[:4]
    for start in ranked:
        number = start
        size, gap = miss(number)
        begun = size
        for turn in range(25):
            if gap is None or size <= TOLERANCE * 1e-3 or (turn == 5 and size > begun / 4):
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
        # Such a scale makes all weights the same, whatever the scores are; to add such a number blocks nothing.
        is_nothing = (slot == "scale" or isinstance(write(number), tuple)) and abs(number) < LEAST_NUMBER
        if not is_nothing and observed.fits({**choices, slot: write(number)}):
            return number
    return None
