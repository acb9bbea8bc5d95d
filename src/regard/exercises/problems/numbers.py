"""The inputs of calls: the course's numbers in float64, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.check.mistakes.course_numbers import X, course_weights, projected
from regard.exercises.problems.problem import Call

__all__ = ["COURSE", "X", "course_call", "course_weights", "draw", "projected", "random_call"]

COURSE = "the course's numbers"


def draw(seed: int, *shapes: Sequence[int]) -> tuple[Tensor, ...]:
    """Random numbers of a normal distribution, float64, of several shapes."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)


def course_call(*args: Any, init: tuple[Any, ...] = (), setting: str = COURSE) -> Call:
    """The call with the course's numbers."""
    return Call(setting, args, init, is_course=True)


def random_call(names: str, *args: Any, init: tuple[Any, ...] = (), seed: int = 7) -> Call:
    """A call with other numbers; its setting names the shapes.

    Args:
        names: of the arguments, "q k v".
        args: the arguments.
        init: of the constructor.
        seed: of the parameters, where a class is asked for.
    """
    told = [
        f"{name} {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name}={value}"
        for name, value in zip(names.split(), args, strict=True)
    ]
    return Call(f"other numbers: {', '.join(told)}", args, init, seed)
