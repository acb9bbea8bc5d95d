"""Formulas of tables of sinusoidal positions: the paper's (Attention Is All You Need, section 3.5), and others.

A formula has an exponent for each channel, by which wavelengths rise, and says which channels are sines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.mistakes.worked_example import MatrixPair, WorkedExample

__all__ = [
    "BASE",
    "FORMULAS",
    "FORMULAS_OF_ANY_BASE",
    "GROWING",
    "PAPER",
    "TOLERANCE",
    "Formula",
    "grid_example",
    "one_row_example",
    "own_exponents",
    "table_example",
]

TOLERANCE = 1e-6
"""Of a number of the table, for each radian of its angle: tables are often computed in float32."""
BASE = 10000.0


@dataclass(frozen=True)
class Formula:
    """One way to make a table: the exponent of each channel, and which channels are sines."""

    exponents: Callable[[Tensor, int], Tensor]
    """Of (channel, width)."""
    sines: Callable[[Tensor, int], Tensor]
    mistakes: tuple[str, ...] = ()
    """Their ids."""
    convention: str = ""
    """What is unusual about it, and still right."""

    def angles(self, length: int, width: int, base: float) -> Tensor:
        """(length, d_model), in radians."""
        exponents = self.exponents(torch.arange(width, dtype=torch.float64), width)
        return torch.arange(length, dtype=torch.float64)[:, None] * base**-exponents

    def made(self, length: int, width: int, base: float) -> Tensor:
        """The table, (length, d_model)."""
        angles = self.angles(length, width, base)
        return torch.where(self.sines(torch.arange(width, dtype=torch.float64), width), angles.sin(), angles.cos())

    def error(self, table: Tensor, base: float) -> Tensor:
        """How far each number of a table is from this one's, in units of what its angle allows."""
        length, width = table.shape
        angles = self.angles(length, width, base)
        return (table - self.made(length, width, base)).abs() / (TOLERANCE * angles.abs().clamp(min=1.0))

    def fits(self, tables: Iterable[Tensor], base: float) -> bool:
        """Whether it gives every number."""
        return all(bool((self.error(table, base) <= 1).all()) for table in tables)

    def base(self, table: Tensor) -> float | None:
        """The base that the angle of position 1 tells, in the fastest sine whose exponent is not 0."""
        channel = torch.arange(table.shape[1], dtype=torch.float64)
        exponents, sines = self.exponents(channel, table.shape[1]), self.sines(channel, table.shape[1])
        usable = [c for c in range(table.shape[1]) if bool(sines[c]) and float(exponents[c]) > 0]
        if not usable:
            return None
        at = min(usable, key=lambda c: float(exponents[c]))
        value = table[1, at].item()
        if not 0 < value < 1:
            return None
        return float(math.asin(value) ** (-1 / float(exponents[at])))


def _paper(channel: Tensor, width: int) -> Tensor:
    return (channel - channel % 2) / width


def own_exponents(channel: Tensor, width: int) -> Tensor:
    """i/d for every channel i, also for odd ones."""
    return channel / width


def _negative(channel: Tensor, width: int) -> Tensor:
    return -_paper(channel, width)


def _negative_own(channel: Tensor, width: int) -> Tensor:
    return -own_exponents(channel, width)


def _negative_halves(channel: Tensor, width: int) -> Tensor:
    return -_halves(channel, width)


def _double(channel: Tensor, width: int) -> Tensor:
    return 2 * channel / width


def _double_shared(channel: Tensor, width: int) -> Tensor:
    return 2 * _paper(channel, width)


def _halves(channel: Tensor, width: int) -> Tensor:
    return 2 * (channel % (width // 2)) / width


def _halves_to_the_end(channel: Tensor, width: int) -> Tensor:
    return (channel % (width // 2)) / max(1, width // 2 - 1)


def _double_halves(channel: Tensor, width: int) -> Tensor:
    return 2 * _halves(channel, width)


def _even(channel: Tensor, width: int) -> Tensor:
    return channel % 2 == 0


def _odd(channel: Tensor, width: int) -> Tensor:
    return channel % 2 == 1


def _first_half(channel: Tensor, width: int) -> Tensor:
    return channel < width // 2


_HALVES = "sines, then cosines (tensor2tensor); in the paper they alternate"
_TO_THE_END = f"{_HALVES}; wavelengths reach 10000 x 2 pi at the last pair, and in the paper one pair later"
PAPER = Formula(_paper, _even)
FORMULAS = (
    PAPER,
    Formula(_halves, _first_half, convention=_HALVES),
    Formula(_halves_to_the_end, _first_half, convention=_TO_THE_END),
    Formula(own_exponents, _even, ("pe-angle",)),
    Formula(_double, _even, ("pe-exponent",)),
    Formula(_double_shared, _even, ("pe-exponent",)),
    Formula(_double_halves, _first_half, ("pe-exponent",), _HALVES),
    Formula(_paper, _odd, ("pe-swapped",)),
    Formula(own_exponents, _odd, ("pe-angle", "pe-swapped")),
    Formula(_double, _odd, ("pe-exponent", "pe-swapped")),
    Formula(_double_shared, _odd, ("pe-exponent", "pe-swapped")),
)
"""With the paper's base; those with fewer mistakes first."""
GROWING = (
    Formula(_negative, _even, ("pe-multiplied",)),
    Formula(_negative_halves, _first_half, ("pe-multiplied",), _HALVES),
    Formula(_negative_own, _even, ("pe-angle", "pe-multiplied")),
    Formula(_negative, _odd, ("pe-swapped", "pe-multiplied")),
)
"""The same where positions are multiplied by what divides them: frequencies grow from pair to pair."""
FORMULAS_OF_ANY_BASE = tuple(
    f for f in FORMULAS if f.exponents in (_paper, own_exponents, _halves) and len(f.mistakes) < 2
)
"""A doubled exponent is left out: it is the same as the plain one with the base squared."""


def table_example(*mistakes: str, base: float = BASE) -> Callable[[], WorkedExample]:
    """The example of mistakes in a table of three positions and four channels.

    Args:
        mistakes: their ids; none for another base alone.
        base: of the wavelengths.
    """
    formula = next(each for each in (*FORMULAS, *GROWING) if each.mistakes == mistakes)

    def example() -> WorkedExample:
        pair = MatrixPair("the table", formula.made(3, 4, base), PAPER.made(3, 4, BASE), "position")
        return WorkedExample("three positions, d_model = 4", "positions", (pair,), {"number": base})

    return example


def grid_example() -> WorkedExample:
    """The sines of rows of a table of a grid whose frequencies fall as powers of e, beside those of 10000."""
    rows, pairs = torch.arange(3, dtype=torch.float64)[:, None], torch.arange(4, dtype=torch.float64)
    made, right = ((rows * rate**pairs).sin() for rate in (math.exp(-2), BASE**-0.25))
    pair = MatrixPair("the sines of the rows", made, right, "row")
    return WorkedExample("three rows, d_model = 16", "positions", (pair,), {"number": math.exp(-2), "wanted": 0.1})


def one_row_example() -> WorkedExample:
    """The row behind the last of three positions, which is added to each of them."""
    table = PAPER.made(4, 4, BASE)
    pair = MatrixPair("what is added", table[3:].expand(3, -1), table[:3], "position")
    return WorkedExample("three positions, d_model = 4", "positions", (pair,))
