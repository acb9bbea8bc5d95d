"""Functions that rotate queries and keys by tables that they are given, and do nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream

ANGLES = torch.arange(5.0).double()[:, None] * torch.tensor([1.0, 0.1]).double()


def turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    real, imaginary = x[..., ::2], x[..., 1::2]
    return torch.stack((real * cos - imaginary * sin, real * sin + sign * imaginary * cos), -1).flatten(-2)


def both(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), turned(xk, cos, sin)


class RotaryTable(nn.Module):
    """Keeps its tables of angles by their length, and by where they begin."""

    def __init__(self, dim: int, by_offset: bool = True) -> None:
        super().__init__()
        self.dim, self.by_offset, self.tables = dim, by_offset, dict[object, Tensor]()

    def forward(self, q: Tensor, k: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        """q, k: (b, h, n, d); offset: how many tokens stand before."""
        turned_ones = []
        for x in (q, k):
            key = x.shape[-2], offset if self.by_offset else 0
            if key not in self.tables:
                places = torch.arange(x.shape[-2]) + offset
                self.tables[key] = places[:, None] * 0.1 ** torch.arange(self.dim // 2)
            turned_ones.append(turned(x, self.tables[key].cos(), self.tables[key].sin()))
        return turned_ones[0], turned_ones[1]


@pytest.mark.parametrize(("by_offset", "verdict"), [(True, "different by design"), (False, "wrong")])
def test_a_module_of_rotary_positions_is_told_the_width_of_a_head_and_judged_alone(
    by_offset: bool, verdict: str
) -> None:
    found = check(RotaryTable, args={"dim": 16, "by_offset": by_offset})
    assert found.verdict == verdict


def scaled(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin) / 2, turned(xk, cos, sin)


def with_lengths(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries grow and keys shrink with their places (xPos)."""
    grown = 1.1 ** torch.arange(xq.shape[-2])[:, None]
    return turned(xq, cos, sin) * grown, turned(xk, cos, sin) / grown


def other_sign(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), turned(xk, cos, sin, -1)


def other_way(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), turned(xk, cos, -sin)


def keys_left(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), xk


@pytest.mark.parametrize(
    ("function", "violated"),
    [
        (both, []),
        (scaled, []),
        (with_lengths, []),
        (other_sign, ["rotation-keeps-lengths"]),
        (other_way, ["positions-relative"]),
        (keys_left, ["positions-relative"]),
    ],
)
def test_queries_and_keys_are_rotated_alike(
    function: Callable[..., tuple[Tensor, Tensor]], violated: list[str]
) -> None:
    streams = [Stream(f"x{role}", role, 0, (2,), 1) for role in "qk"]
    given = {f"x{role}": drawn(2, 3, 5, 4, seed=seed) for seed, role in enumerate("qk")}
    arguments = {**given, "cos": ANGLES.cos(), "sin": ANGLES.sin()}
    found = analyze(Invocation(function, arguments, [*arguments], streams)).violations
    assert [each.property for each in found] == violated
